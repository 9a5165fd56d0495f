{{- /* Names and parts that several templates share. SPDX-License-Identifier: Apache-2.0 */ -}}
{{- define "terrace.fullname" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name | trunc 40 | trimSuffix "-" }}{{ else }}{{ printf "%s-%s" .Release.Name .Chart.Name | trunc 40 | trimSuffix "-" }}{{ end }}
{{- end }}

{{- /* What selects the pods of one part: (dict "root" $ "part" "worker"). A release more in a namespace selects its own. */ -}}
{{- define "terrace.selector" -}}
app.kubernetes.io/name: terrace-{{ .part }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- end }}

{{- define "terrace.labels" -}}
{{ include "terrace.selector" . }}
app.kubernetes.io/part-of: terrace
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version }}
{{- end }}

{{- define "terrace.image" -}}
{{- $cuda := ternary "-cuda" "" (gt (int .Values.worker.gpus) 0) -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default (printf "%s%s" .Chart.AppVersion $cuda) }}
{{- end }}

{{- define "terrace.dataClaim" -}}
{{ .Values.data.existingClaim | default (printf "%s-data" (include "terrace.fullname" .)) }}
{{- end }}

{{- /* Of every container of ours. */ -}}
{{- define "terrace.containerSecurity" -}}
{allowPrivilegeEscalation: false, readOnlyRootFilesystem: true, capabilities: {drop: [ALL]}}
{{- end }}
