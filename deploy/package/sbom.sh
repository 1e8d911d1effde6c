#!/bin/sh
# Reads components ("deb NAME VERSION ...", "pypi NAME VERSION ...") and prints the bill of materials of
# Tessera with them, as SPDX 2.3 in JSON:
#   deploy/package/components.sh build/release | deploy/package/sbom.sh VERSION >tessera.spdx.json
# Without jq: it also runs inside an image.
set -eu
version=$1
created=$(date -u -d "@${SOURCE_DATE_EPOCH:-$(date +%s)}" +%Y-%m-%dT%H:%M:%SZ)

awk -v version="$version" -v created="$created" '
  function package(id, name, version, licence, purl) {
    printf "%s\n    {\"SPDXID\": \"%s\", \"name\": \"%s\", \"versionInfo\": \"%s\", ", separator, id, name, version
    printf "\"downloadLocation\": \"NOASSERTION\", \"licenseConcluded\": \"%s\", ", licence
    printf "\"licenseDeclared\": \"%s\", \"copyrightText\": \"NOASSERTION\"", licence
    if (purl != "")
      printf ", \"externalRefs\": [{\"referenceCategory\": \"PACKAGE-MANAGER\", \"referenceType\": \"purl\", \"referenceLocator\": \"%s\"}]", purl
    printf "}"
    separator = ","
  }
  BEGIN {
    print "{\n  \"spdxVersion\": \"SPDX-2.3\",\n  \"dataLicense\": \"CC0-1.0\",\n  \"SPDXID\": \"SPDXRef-DOCUMENT\","
    printf "  \"name\": \"tessera-%s\",\n  \"documentNamespace\": \"urn:tessera:%s:%s\",\n", version, version, created
    printf "  \"creationInfo\": {\"created\": \"%s\", \"creators\": [\"Tool: deploy/package/sbom.sh\"]},\n", created
    printf "  \"packages\": ["
    package("SPDXRef-tessera", "tessera", version, "Apache-2.0", "")
  }
  $2 != "tessera" && !seen[$1, $2]++ {
    id = "SPDXRef-" $1 "-" $2
    gsub(/[^A-Za-z0-9.-]/, "-", id)
    encoded = $3
    gsub(/\+/, "%2B", encoded)
    gsub(/:/, "%3A", encoded)
    package(id, $2, $3, "NOASSERTION", "pkg:" ($1 == "deb" ? "deb/debian" : $1) "/" $2 "@" encoded)
    ids[++count] = id
  }
  END {
    printf "\n  ],\n  \"relationships\": [\n"
    printf "    {\"spdxElementId\": \"SPDXRef-DOCUMENT\", \"relationshipType\": \"DESCRIBES\", \"relatedSpdxElement\": \"SPDXRef-tessera\"}"
    for (i = 1; i <= count; i++)
      printf ",\n    {\"spdxElementId\": \"SPDXRef-tessera\", \"relationshipType\": \"DEPENDS_ON\", \"relatedSpdxElement\": \"%s\"}", ids[i]
    print "\n  ]\n}"
  }'
