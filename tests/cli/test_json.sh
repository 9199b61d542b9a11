# What --json prints is JSON with the promised keys.
set -u
failed=0

# keys NAME KEYS...: reads JSON from a file and demands the keys.
keys() {
    python3 - "$@" <<'PYTHON' || failed=1
import json
import sys

path, names = sys.argv[1], sys.argv[2:]
with open(path) as file:
    value = json.load(file)
missing = [name for name in names if name not in value]
if missing:
    sys.exit(f"{path}: keys are missing: {missing}")
PYTHON
}

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$MOK" info --json >"$work/info" || failed=1
keys "$work/info" version levels level processors
"$MOK" check --quick --json >"$work/check" || failed=1
keys "$work/check" compared different rows
python3 -c 'import json, sys; v = json.load(open(sys.argv[1])); sys.exit(not (v["compared"] >= 20 and v["different"] == 0))' \
    "$work/check" || { echo "check compared too little or found a difference"; failed=1; }
"$MOK" check --quick --json --inject >"$work/inject"
if [ $? != 1 ]; then
    echo "check --inject must exit with 1"
    failed=1
fi
python3 -c 'import json, sys; v = json.load(open(sys.argv[1])); sys.exit(v["different"] == 0)' "$work/inject" ||
    { echo "check --inject found no difference"; failed=1; }
exit $failed
