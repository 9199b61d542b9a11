# Exit codes, help and what bad options say.
set -u
failed=0

# expect CODE PATTERN ARGUMENTS...: the exit code, and a pattern in what is printed.
expect() {
    code=$1
    pattern=$2
    shift 2
    output=$("$MOK" "$@" 2>&1)
    got=$?
    if [ "$got" != "$code" ] || ! printf '%s\n' "$output" | grep -q -- "$pattern"; then
        echo "mok $*: exit code $got (must be $code), must print: $pattern"
        printf '%s\n' "$output" | head -5
        failed=1
    fi
}

expect 2 'usage: mok VERB'
expect 0 'usage: mok VERB' --help
expect 0 '^mok [0-9]*\.[0-9]*\.[0-9]*$' --version
expect 2 "unknown verb 'fly'" fly
for verb in info check bench train trace launch; do
    expect 0 "usage: mok $verb" $verb --help
    expect 0 'example:' $verb --help
    expect 2 "unknown option '--nothing'" $verb --nothing
    expect 2 "what is 'stray'" $verb stray
done
expect 2 "a value is missing for '--ranks'" train --ranks
expect 2 "cannot read the value of '--ranks'" train --ranks two
expect 2 "cannot read the value of '--lr'" train --lr nan
expect 2 "no value belongs to '--json=1'" info --json=1
expect 2 "must be tiny, demo or small" train --size huge
expect 2 "arith must be tc16 or fma" train --arith bf16
expect 2 "must be auto, ref, avx2 or avx512" train --level sse
expect 2 "ranks must be 1" train --ranks 0
expect 2 "whole lanes" train --ranks 9
expect 2 "steps" train --steps 0
expect 1 "No such file" train --data /nonexistent --out "${TMPDIR:-/tmp}/mok-none"
expect 0 'levels' info
exit $failed
