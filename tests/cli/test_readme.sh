# The README's piece of C stands in examples/minimal.c, line by line in order.
python3 - "$SOURCE_DIR/README.md" "$SOURCE_DIR/examples/minimal.c" <<'PYTHON'
import re
import sys

readme = open(sys.argv[1]).read()
example = open(sys.argv[2]).read().splitlines()
blocks = re.findall(r"```c\n(.*?)```", readme, re.S)
if not blocks:
    sys.exit("the README has no C")
for block in blocks:
    lines = block.rstrip("\n").splitlines()
    if not any(example[i:i + len(lines)] == lines for i in range(len(example))):
        sys.exit("the README's C is not what examples/minimal.c has")
PYTHON
