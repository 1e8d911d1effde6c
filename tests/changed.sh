#!/bin/sh
# Prints the files that differ from $TESSERA_BASE (a commit; default: where this branch left
# origin's main, or the last commit where nothing is ahead of it), with uncommitted ones.
set -eu
cd "$(dirname "$0")/.."
base=${TESSERA_BASE:-$(git merge-base HEAD origin/main 2>/dev/null || true)}
head=$(git rev-parse HEAD)
if [ -z "$base" ] || [ "$base" = "$head" ]; then
  base=$(git rev-parse -q --verify 'HEAD~1' || git hash-object -t tree /dev/null)
fi
{ git diff --name-only --diff-filter=d "$base"; git ls-files --others --exclude-standard; } | sort -u
