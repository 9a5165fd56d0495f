#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""deploy/kubernetes: manifests against the published schemas of two Kubernetes versions, and what schemas do not see. Needs Python's
yaml; the schemas need kubernetes-validate (PyPI), and their test is skipped without it."""
import subprocess
import unittest

from support import BIN, ROOT

try:
    import yaml
except ImportError:
    yaml = None
try:
    import kubernetes_validate
except ImportError:
    kubernetes_validate = None

FOLDER = ROOT / "deploy/kubernetes"
VERSIONS = ("1.32", "1.37")
FOREIGN = ("cert-manager.io/v1", "monitoring.coreos.com/v1", "kustomize.config.k8s.io/v1beta1")  # not Kubernetes' own


def manifests(folder):
    """What a kustomization lists, as kustomize reads it: resources in order, patches apart."""
    kustomization = yaml.safe_load((folder / "kustomization.yaml").read_text())
    found = []
    for name in kustomization["resources"]:
        path = folder / name
        found += manifests(path)[0] if path.is_dir() else [item for item in yaml.safe_load_all(path.read_text()) if item]
    patches = [yaml.safe_load((folder / patch["path"]).read_text()) for patch in kustomization.get("patches", [])]
    return found, patches


def named(items, kind):
    return {item["metadata"]["name"]: item for item in items if item["kind"] == kind}


@unittest.skipUnless(yaml, "needs Python's yaml (Debian: python3-yaml)")
class KubernetesTest(unittest.TestCase):
    def setUp(self):
        self.base, _ = manifests(FOLDER / "base")
        self.workloads = {**named(self.base, "StatefulSet"), **named(self.base, "DaemonSet")}

    def pod(self, name):
        return self.workloads[name]["spec"]["template"]["spec"]

    @unittest.skipUnless(kubernetes_validate, "needs kubernetes-validate (PyPI)")
    def test_every_manifest_fits_the_schemas_of_two_versions(self):
        checked = 0
        for path in sorted(FOLDER.rglob("*.yaml")):
            for item in yaml.safe_load_all(path.read_text()):
                if item["apiVersion"] in FOREIGN or "overlays" in path.parts:
                    continue
                for version in VERSIONS:
                    with self.subTest(f"{path.name} {item['kind']} {version}"):
                        kubernetes_validate.validate(item, version, strict=True)
                        checked += 1
        self.assertGreaterEqual(checked, 2 * 9)

    def test_every_file_is_listed_by_a_kustomization(self):
        for folder in ("base", "monitoring", "overlays/gpu", "overlays/cpu-small"):
            kustomization = yaml.safe_load((FOLDER / folder / "kustomization.yaml").read_text())
            listed = set(kustomization["resources"]) | {patch["path"] for patch in kustomization.get("patches", [])}
            present = {path.name for path in (FOLDER / folder).glob("*.yaml")} - {"kustomization.yaml"}
            self.assertEqual(present, {name for name in listed if name.endswith(".yaml")}, folder)

    def test_names_refer_to_something(self):
        secrets = {item["spec"]["secretName"] for item in named(self.base, "Certificate").values()}
        claims, accounts = named(self.base, "PersistentVolumeClaim"), named(self.base, "ServiceAccount")
        for name, workload in self.workloads.items():
            pod, template = self.pod(name), workload["spec"]["template"]
            self.assertIn(pod["serviceAccountName"], accounts)
            volumes = {volume["name"] for volume in pod["volumes"]}
            volumes |= {claim["metadata"]["name"] for claim in workload["spec"].get("volumeClaimTemplates", [])}
            for container in pod["containers"] + pod.get("initContainers", []):
                for mount in container["volumeMounts"]:
                    self.assertIn(mount["name"], volumes, name)
                self.assertTrue(container["securityContext"]["readOnlyRootFilesystem"])
                self.assertEqual(container["securityContext"]["capabilities"]["drop"], ["ALL"])
            for volume in pod["volumes"]:
                if "secret" in volume:
                    self.assertIn(volume["secret"]["secretName"], secrets)
                if "persistentVolumeClaim" in volume:
                    self.assertIn(volume["persistentVolumeClaim"]["claimName"], claims)
            wanted = workload["spec"]["selector"]["matchLabels"]
            self.assertLessEqual(wanted.items(), template["metadata"]["labels"].items())
            ports = {port["name"]: port["containerPort"] for port in pod["containers"][0]["ports"]}
            self.assertEqual(str(ports["metrics"]), template["metadata"]["annotations"]["prometheus.io/port"])
        for name, service in named(self.base, "Service").items():
            ports = {port["name"] for port in self.pod(name)["containers"][0]["ports"]}
            self.assertEqual({port["targetPort"] for port in service["spec"]["ports"]}, ports)
        for item in [*named(self.base, "NetworkPolicy").values(), *named(self.base, "PodDisruptionBudget").values()]:
            labels = item["spec"].get("podSelector", item["spec"].get("selector"))["matchLabels"]
            self.assertIn(labels["app.kubernetes.io/name"], self.workloads)

    def test_options_of_the_programs_exist(self):
        for name in self.workloads:
            program, *arguments = self.pod(name)["containers"][0]["args"]
            subcommand = [argument for argument in arguments if not argument.startswith("-")]
            help_text = subprocess.run([BIN / program, *subcommand, "--help"], capture_output=True, text=True, timeout=30).stdout
            for option in (argument.split("=")[0] for argument in arguments if argument.startswith("--")):
                self.assertIn(f"{option} ", help_text.replace("\n", " "), f"{name}: {option}")

    def test_rules_are_those_of_prometheus(self):
        printed = subprocess.run([FOLDER / "monitoring/prometheus_rule.sh"], capture_output=True, text=True, timeout=30, check=True).stdout
        made = [item["spec"] for item in yaml.safe_load_all(printed)]
        self.assertEqual(made, [yaml.safe_load((ROOT / f"deploy/prometheus/{name}.yml").read_text()) for name in ("rules", "alerts")])

    def test_overlays_patch_what_the_base_has(self):
        for overlay in ("gpu", "cpu-small"):
            found, patches = manifests(FOLDER / "overlays" / overlay)
            for patch in patches:
                base = named(found, patch["kind"])[patch["metadata"]["name"]]["spec"]["template"]["spec"]
                pod = patch["spec"]["template"]["spec"]
                self.assertLessEqual({item["name"] for item in pod["containers"]}, {item["name"] for item in base["containers"]})
                mounted = {mount["name"] for item in pod["containers"] for mount in item.get("volumeMounts", [])}
                self.assertLessEqual(mounted, {volume["name"] for volume in pod.get("volumes", []) + base["volumes"]})
                for item in pod["containers"]:
                    for resource, amount in item["resources"]["limits"].items():
                        self.assertEqual(item["resources"]["requests"][resource], amount, f"{overlay}: {resource}")


if __name__ == "__main__":
    unittest.main(verbosity=2)
