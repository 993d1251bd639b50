#!/usr/bin/env bash
# The examples do what they say. The one that only infers classifies right, links nothing of
# training, and needs little memory.
# Usage: check_examples.sh SOURCE_DIR BUILD_DIR
set -euo pipefail
export LC_ALL=C
source=$1
build=$2
[ -x "$build/example_infer" ] || { echo "the examples are not built"; exit 77; }
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
failed=0

fail() {
    echo "$*"
    failed=1
}

# prints TEXT PROGRAM...: it succeeds, and the text is in what it prints.
prints() {
    local output
    output=$("${@:2}" 2>&1) || fail "${2##*/}: status $?: $output"
    [[ $output == *"$1"* ]] || fail "${2##*/}: \"$1\" is not in: $output"
}

prints "step 32: loss" "$build/example_first"
prints "step 20: loss" "$build/example_gradient_penalty"
prints "wrong backward: op check: cube: f64: gradient check: input 0, element 0" \
    "$build/example_custom_op"
prints 'was not made with "kernels reference" and does not count
checked' "$build/example_custom_op"
prints "the kept model is ready: 23 tensors" "$build/example_train_in_app"

# ---- docs/numerics.md: "$ build/PROGRAM", then lines that it prints, all indented by 4 -----------

quoted=0
while IFS= read -r line; do
    if [[ $line == "$ build/"* ]]; then
        command=$(sed "s|build/|'$build'/|" <<<"${line#$ }")
        output=$(bash -o pipefail -c "$command" 2>&1) || fail "$line: status $?: $output"
    else
        grep -qxF -e "$line" <<<"$output" || fail "docs/numerics.md: $line: is not in: $output"
        quoted=$((quoted + 1))
    fi
done < <(sed -n 's/^    //p' "$source/docs/numerics.md")
[ "$quoted" -gt 40 ] || fail "docs/numerics.md: only $quoted lines are quoted"
for program in bits sums loss_scaling overflow swallowed_updates clip_after_unscale shadow; do
    grep -q "^    \$ build/example_$program" "$source/docs/numerics.md" ||
        fail "docs/numerics.md says nothing of examples/$program.c"
done
! "$build/example_bits" 1.5x >/dev/null 2>&1 || fail "example_bits takes 1.5x for a number"

# ---- README.md ------------------------------------------------------------------------------

sed -n '/^```c$/,/^```$/{/^```/d;p}' "$source/README.md" | cmp - "$source/examples/first.c" ||
    fail "the program in README.md is not examples/first.c"

# ---- inference: a data set of bars, each class another row -----------------------------------

# image CLASS NUMBER: 10 rows of 10 pixels.
image() {
    awk -v class="$1" -v seed="$2" 'BEGIN {
        for (i = 0; i < 100; i++)
            printf "%c", (int(i / 10) == class ? 180 : 30) + (seed * 13 + i * 7) % 40
    }'
}

# part PREFIX COUNT
part() {
    printf '\0\0\10\3\0\0%b\0\0\0\12\0\0\0\12' "$(printf '\\x%02x\\x%02x' $(($2 / 256)) $(($2 % 256)))" \
        >"$work/$1-images-idx3-ubyte"
    printf '\0\0\10\1\0\0%b' "$(printf '\\x%02x\\x%02x' $(($2 / 256)) $(($2 % 256)))" \
        >"$work/$1-labels-idx1-ubyte"
    local i
    for ((i = 0; i < $2; i++)); do
        image $((i % 10)) $i >>"$work/$1-images-idx3-ubyte"
        printf "\\$(printf %o $((i % 10)))" >>"$work/$1-labels-idx1-ubyte"
    done
}

part train 150
part t10k 10
"$build/minim" train --data "mnist:$work" --model cnn-small --epochs 6 --batch 10 --lr 0.01 \
    --threads 1 --checkpoint "$work/model" >"$work/log" 2>&1 || fail "train: $(cat "$work/log")"
for class in 0 4 9; do
    image $class 1000 >"$work/image"
    output=$("$build/example_infer" "$work/model" <"$work/image") || fail "infer: status $?"
    [[ $output == "class $class, "* ]] || fail "infer: $output, not class $class"
done
head -c 99 "$work/image" >"$work/short"
! "$build/example_infer" "$work/model" <"$work/short" 2>/dev/null || fail "a short image is taken"
! "$build/example_infer" "$work/image" <"$work/image" 2>/dev/null || fail "a foreign file is taken"

# ---- what inference costs --------------------------------------------------------------------

if ! grep -qx 'CMAKE_BUILD_TYPE:STRING=Release' "$build/CMakeCache.txt" ||
    grep -q '^MINIM_SANITIZE:STRING=.' "$build/CMakeCache.txt"; then
    echo "no Release build: the memory of inference is not measured"
    exit $failed
fi
cc=$(sed -n 's/^CMAKE_C_COMPILER:[A-Z]*=//p' "$build/CMakeCache.txt")
"$cc" -std=c11 -O2 -I"$source/include" -Dmain=infer_main -Dmn_context_free=infer_done -c \
    "$source/examples/infer.c" -o "$work/infer.o"
if "$cc" -std=c11 -O2 -I"$source/include" -static "$source/tests/memory_infer.c" "$work/infer.o" \
    "$build/libminim.a" -lz -lm -pthread -o "$work/infer" 2>"$work/log"; then
    "$build/minim" train --data synthetic:28x28x1:10:64 --model cnn-small --epochs 1 --threads 1 \
        --checkpoint "$work/model" >/dev/null
    head -c 784 /dev/zero >"$work/image"
    "$work/infer" "$work/model" <"$work/image" || fail "infer takes too much memory"
    unwanted=$(nm "$work/infer" | awk '$2 == "T" { print $3 }' | grep -E \
        '^(inflate|mn_(train|compare|bench|report|loader|dataset|sgd|optimizer|grad_scaler|gradcheck))' || true)
    [ -z "$unwanted" ] || fail "infer links what it does not need: $unwanted"
else
    echo "no static program can be linked: the memory of inference is not measured"
fi
exit $failed
