#!/bin/sh
# Prints the components of a build's programs, one a line, sorted:
#   deploy/package/components.sh BUILD_FOLDER
#   deb libssl3 3.0.15-1~deb12u1 linked
# Its form: where it comes from (deb, pypi), its name, its version, and how it is used:
#   linked    a shared library: the .deb names its package, the tarball has it inside
#   bundled   a shared library of a Python package (CUDA's): both have it inside
#   compiled  source that is compiled into the programs
set -eu
cd "$(dirname "$0")/../.."
bin=$1/bin

list=$(mktemp -d)
trap 'rm -rf "$list"' EXIT
for program in "$bin"/tessera-server "$bin"/tessera-load "$bin"/libtessera_cuda.so; do
  [ ! -e "$program" ] || ldd "$program"
done | awk '$3 ~ "^/" {print $3}' | sort -u >"$list/libraries"
[ -s "$list/libraries" ] || { echo "$bin has no programs: build tessera-server and tessera-load" >&2; exit 1; }
python_package() {  # python_package LIBRARY: its component, by the RECORD files of the folder it is installed in
  real=$(realpath "$1")
  site=${real%/nvidia/*}
  record=$(grep -lsF "${real#"$site"/}," "$site"/*.dist-info/RECORD | head -n 1)
  [ -n "$record" ] || return 1
  sed -n 's/^Name: //p; s/^Version: //p; /^$/q' "$(dirname "$record")/METADATA" | paste -s -d ' ' | sed 's/.*/pypi & bundled/'
}
while read -r library; do
  # /lib is a link to /usr/lib, and packages name their files by either.
  owner=$(dpkg -S "$library" "/usr$library" "${library#/usr}" 2>/dev/null | grep -v '^diversion' | head -n 1)
  if [ -n "$owner" ]; then
    echo "${owner%%:*}" >>"$list/linked"
  else
    python_package "$library" >>"$list/bundled" || { echo "$library belongs to no package" >&2; exit 1; }
  fi
done <"$list/libraries"
touch "$list/bundled"

deb() {  # deb USE PACKAGE...
  use=$1; shift
  dpkg-query -W -f "deb \${Package} \${Version} $use\n" "$@"
}
boost=$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' 'libboost1.*-dev' | sed -n 's/^installed //p' | head -n 1)
{
  deb linked $(sort -u "$list/linked")
  sort -u "$list/bundled"
  deb compiled cppzmq-dev nlohmann-json3-dev libcli11-dev "$boost" node-markdown-it node-punycode
  sed -n 's/^package=\(.*\)==\(.*\)/pypi \1 \2 compiled/p' deploy/xgrammar.sh
} | LC_ALL=C sort
