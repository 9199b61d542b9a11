# mok train on a text of its own making: one digest for ranks, threads, levels and a resumed run; files in place;
# damaged and foreign checkpoints refused.
set -u
failed=0
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -c '
words = ["the", "river", "ran", "past", "an", "old", "mill", "and", "no", "one", "knew", "why"]
state = 7
out = []
for i in range(12000):
    state = (state * 1103515245 + 12345) % 2**31
    out.append(words[state // 65536 % len(words)])
print(" ".join(out))
' >"$work/text"

train() {
    out=$1
    shift
    "$MOK" train --data "$work/text" --size tiny --steps 8 --out "$work/$out" --quiet "$@"
}

first=$(train one)
case $first in
"state digest: "*" class tc16") ;;
*)
    echo "the last line is: $first"
    failed=1
    ;;
esac
for ranks in 2 3 4 8; do
    got=$(train "r$ranks" --ranks $ranks --threads 2)
    [ "$got" = "$first" ] || { echo "$ranks ranks: $got, 1 rank: $first"; failed=1; }
done
got=$(train ref --level ref)
[ "$got" = "$first" ] || { echo "level ref: $got, must be $first"; failed=1; }
train half --ranks 3 --stop-at 4 >/dev/null
got=$(train resumed --ranks 2 --resume "$work/half")
[ "$got" = "$first" ] || { echo "resumed: $got, must be $first"; failed=1; }
fma=$(train fma --arith fma)
case $fma in
*" class fma") ;;
*)
    echo "class fma: $fma"
    failed=1
    ;;
esac
[ "${fma% class fma}" != "${first% class tc16}" ] || { echo "fma and tc16 have one digest"; failed=1; }
for file in log.jsonl loss.svg load.svg checkpoint.safetensors; do
    [ -s "$work/one/$file" ] || { echo "$file is missing"; failed=1; }
done
[ ! -e "$work/one/checkpoint.safetensors.tmp" ] || { echo "a temporary file was left"; failed=1; }
[ "$(wc -l <"$work/one/log.jsonl")" = 8 ] || { echo "the log must have 8 lines"; failed=1; }

# refuse NAME PATTERN OPTIONS...: a resume that must fail with exit code 1 and a text.
refuse() {
    name=$1
    pattern=$2
    shift 2
    output=$(train bad --resume "$work/half" "$@" 2>&1)
    if [ $? != 1 ] || ! printf '%s' "$output" | grep -q -- "$pattern"; then
        echo "$name: must be refused with '$pattern', printed: $output"
        failed=1
    fi
}
cp "$work/half/checkpoint.safetensors" "$work/whole"
head -c 5000 "$work/whole" >"$work/half/checkpoint.safetensors"
refuse "a truncated file" "checkpoint"
python3 -c '
import sys
data = bytearray(open(sys.argv[1], "rb").read())
data[-1000] ^= 1
open(sys.argv[2], "wb").write(data)
' "$work/whole" "$work/half/checkpoint.safetensors"
refuse "an altered file" "altered"
cp "$work/whole" "$work/half/checkpoint.safetensors"
refuse "another seed" "seed" --seed 5
refuse "another class" "class" --arith fma
: >"$work/empty"
"$MOK" train --data "$work/empty" --size tiny --out "$work/e" --quiet 2>/dev/null
[ $? = 1 ] || { echo "an empty text must be refused"; failed=1; }
exit $failed
