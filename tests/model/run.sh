# Checks both models with spin in a folder of their own; then a broken barrier, which must be found.
# usage: run.sh SOURCE_FOLDER GENERATOR
set -u
source=$1
generator=$2
if ! command -v spin >/dev/null 2>&1; then
    echo "skipped: spin is not installed"
    exit 77
fi
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
cp "$source"/*.pml . && "$generator" >tasks.inc || exit 1

# errors FILE: how many spin finds, in all interleavings.
errors() {
    spin -a "$1" >/dev/null && cc -O2 -w -DSAFETY -DCOLLAPSE -DMEMLIM=2000 -o pan pan.c &&
        ./pan -m200000 | tee pan.log | sed -n 's/.*errors: \([0-9]*\).*/\1/p'
}

failed=0
for model in barrier ring; do
    found=$(errors $model.pml)
    states=$(sed -n 's/ *\([0-9.e+]*\) states, stored.*/\1/p' pan.log)
    echo "$model: errors $found, states $states"
    if [ "$found" != 0 ] || grep -q 'max search depth too small\|out of memory' pan.log; then
        failed=1
    fi
done
# One buffer instead of two: a rank overwrites what a peer still reads.
sed 's/round % 2/0/g' barrier.pml >broken.pml
found=$(errors broken.pml)
echo "broken barrier: errors $found (must be found)"
[ "$found" != 0 ] || failed=1
exit $failed
