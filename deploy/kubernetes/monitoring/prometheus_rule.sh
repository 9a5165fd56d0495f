#!/bin/sh
# Prints deploy/prometheus' recording rules and alerts as PrometheusRules of the Prometheus operator:
#   deploy/kubernetes/monitoring/prometheus_rule.sh | kubectl apply -n terrace -f -
# SPDX-License-Identifier: Apache-2.0
set -eu
cd "$(dirname "$0")/../../prometheus"
for file in rules alerts; do
  printf -- '---\napiVersion: monitoring.coreos.com/v1\nkind: PrometheusRule\nmetadata: {name: terrace-%s}\nspec:\n' $file
  sed 's/^\(.\)/  \1/' $file.yml
done
