#!/usr/bin/env bash
# The program as its users meet it: exit codes, one clear line per mistake, nothing half-written,
# resume and thread counts bit for bit. Usage: check_cli.sh SOURCE_DIR BUILD_DIR
set -u
minim=$(cd "$2" && pwd)/minim || exit 1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
failures=0
data="--data synthetic:28x28x1:10:192 --limit 192 --batch 32 --validation 0 --quiet"

fail() {
    printf 'FAILED: %s\n' "$*"
    failures=$((failures + 1))
}

# expect STATUS PATTERN COMMAND...: exit status, and a pattern in what it printed
expect() {
    local status=$1 pattern=$2
    shift 2
    "$@" >out 2>err </dev/null
    local got=$?
    [ "$got" = "$status" ] || fail "$* exited with $got, not $status: $(head -c 300 err)"
    grep -qE -- "$pattern" out err || fail "$*: no \"$pattern\" in: $(head -c 300 out) $(head -c 300 err)"
    if [ "$status" = 1 ] || { [ "$status" = 2 ] && [ $# -gt 1 ]; }; then
        [ "$(grep -vc "^minim: note: " err)" = 1 ] || fail "$*: not one line on standard error: $(cat err)"
        grep -q '^minim: ' err || fail "$*: the line does not begin with \"minim: \""
    fi
}

same() { cmp -s "$1" "$2" || fail "$1 and $2 differ"; }

# usage
expect 2 'usage: minim COMMAND' "$minim"
expect 0 'usage: minim COMMAND' "$minim" --help
expect 0 '^minim [0-9]+\.[0-9]+\.[0-9]+$' "$minim" --version
expect 2 'unknown command "trian"' "$minim" trian
for command in train eval compare bench range shadow models graph ops info; do
    expect 0 "usage: minim $command" "$minim" "$command" --help
done
expect 0 'default 256' "$minim" eval --help
expect 0 'timed steps \(default 50\)' "$minim" bench --help
expect 2 'unknown option "--bacth"' "$minim" train --bacth 3
expect 2 '--batch: expected a whole number' "$minim" train --batch 0
expect 2 '--batch: expected a whole number' "$minim" train --batch=1x
expect 2 '--batch: needs a value' "$minim" train --batch
expect 2 '--lr: expected a number' "$minim" train --lr nan
expect 2 '--amp: expected off, bf16 or fp16' "$minim" train --amp int8
expect 2 'unexpected argument "x"' "$minim" train x
expect 2 '--quiet: takes no value' "$minim" train --quiet=1
expect 2 'eval needs one' "$minim" eval
expect 2 '--seed: expected a whole number' "$minim" train --seed=' 5'
expect 2 '--lr: expected a number' "$minim" train --lr +1
expect 2 '--log: needs a value' "$minim" train --log --quiet
expect 2 'takes synthetic' "$minim" bench --data synthetic:99999999999x28x1:10
expect 2 'models takes synthetic' "$minim" models --data mnist:idx
expect 0 'lenet5 \(default\), cnn-small, resnet8, resnet20, resnet18' "$minim" train --help
# ... in one line, whatever was typed
expect 2 'unknown command "a\?b"' "$minim" $'a\nb'
expect 2 'unknown option "--a\?b"' "$minim" train $'--a\nb'
expect 2 'unexpected argument "a\?b"' "$minim" train $'a\nb'
expect 2 'got "a\?b\?\[31m"' "$minim" train --amp $'a\nb\e[31m'

# mistakes in what is asked for
expect 1 'no model "resnet99"' "$minim" train $data --model resnet99
expect 1 'cuda' "$minim" train $data --device cuda
expect 1 'lion' "$minim" train $data --optimizer lion
expect 1 'must be f32, bf16, bf16-master or bf16-stochastic, got f16' "$minim" train $data --parameters f16
expect 2 '--schedule: expected constant, step' "$minim" train $data --schedule stairs
expect 1 '--step-size' "$minim" train $data --schedule step
expect 1 '--gamma is of --schedule step' "$minim" train $data --gamma 0.1
expect 1 '--step-size is of --schedule step' "$minim" compare $data --schedule constant --step-size 3
expect 1 '--resume-anyway needs --resume' "$minim" train $data --resume-anyway
expect 1 '--lr' "$minim" train $data --lr -1
expect 1 'nowhere' "$minim" train --data mnist:nowhere
expect 1 'imagenet' "$minim" train --data imagenet
expect 1 'No such file' "$minim" train $data --epochs 1 --checkpoint nowhere/x.safetensors
expect 1 'No such file' "$minim" eval --checkpoint nothing.safetensors
expect 1 'No such file' "$minim" train $data --log nowhere/log
expect 1 'fp32 is missing' "$minim" compare $data --precisions bf16
expect 1 'fp8' "$minim" compare $data --precisions fp32,fp8

# files that must not be replaced, and logs that must not be lost
mkdir folder
mkfifo pipe
expect 1 'is a folder' "$minim" train $data --epochs 1000 --checkpoint folder
expect 1 'is a device or pipe' "$minim" train $data --epochs 1000 --checkpoint pipe
[ -p pipe ] || fail "a checkpoint replaced a pipe"
expect 1 'one file' "$minim" train $data --epochs 1 --checkpoint ./both --log both
touch file
expect 1 'Not a directory' "$minim" compare $data --epochs 1000 --report file/report
echo kept >old.log
expect 1 '--lr' "$minim" train $data --lr -1 --log old.log
[ "$(cat old.log)" = kept ] || fail "a run that did not begin emptied its log"
expect 0 'log: old.log' "$minim" train $data --steps 1 --log old.log
[ "$(head -c 8 old.log)" = '{"event"' ] || fail "a new run kept the old log"

# closed standard files: what is meant for the user goes into no other file
"$minim" train $data --steps 1 --log closed.log >&- 2>err && fail "train >&- succeeded"
grep -q '^minim: standard output: ' err || fail "train >&-: $(cat err)"
grep -v '^{' closed.log && fail "train >&- wrote into its log"
"$minim" train --data synthetic:28x28x1:10:64 --epochs 1 --log closed.log >out 2>&- || fail "train 2>&-"
grep -v '^{' closed.log && fail "train 2>&- wrote into its log"

# what models cost; one that does not fit says so in its row
expect 0 '^resnet20 +272474 +' "$minim" models --data synthetic:32x32x3:10
expect 0 '^lenet5 needs images of at least 12x12, these are 4x7$' "$minim" models --data synthetic:4x7x1:3
grep -qE '^resnet8 +[0-9]' out || fail "models: $(cat out)"
expect 1 'at least 1' "$minim" models --data synthetic:4x4x0:3
# what would fit into 16 bits
small="--data synthetic:28x28x1:10:64 --batch 16 --steps 2"
# shellcheck disable=SC2086 # options are words
{
    expect 0 '^f16: fits; loss scales up to 2\^[0-9]+' "$minim" range $small
    expect 0 '^conv2 +conv2d_relu +forward +f32 .* fits' "$minim" range $small
    expect 0 'overflows by .*x at .* forward' "$minim" range $small --steps 12 --lr 40 --momentum 0
    expect 0 '^bf16: fits' "$minim" range $small --amp bf16 --model cnn-small
    expect 1 'range: what overflowed in fp16' "$minim" range $small --amp fp16
    expect 1 'no model "nix"' "$minim" range $small --model nix
    "$minim" train $small --parameters bf16-master --quiet --checkpoint masters.st >out || fail masters
    expect 0 '^fc1.weight +sgd_step +update +bf16' "$minim" range $small --checkpoint masters.st \
        --parameters bf16-master
}
expect 0 '^  ms/step +[0-9]' "$minim" bench --model resnet8 --steps 2 --batch 2 --warmup 0
expect 0 '^  rest: dispatch and host +[0-9.]+ +[0-9.]+%$' "$minim" bench --steps 2 --batch 2 --profile
expect 0 '^  relu +forward ' "$minim" bench --steps 1 --batch 2 --profile --kernels portable --direct --unfused
expect 2 'expected auto, reference,.* got "sse"' "$minim" bench --kernels sse
# case R59: the gain over FP32, the share of casts, and advice where there is no gain
expect 0 '^  FP32 takes [0-9.]+ ms/step: with --amp fp16 ([0-9.]+) times its throughput; casts take [0-9.]+%$' \
    "$minim" bench --steps 4 --batch 1 --amp fp16 --profile
awk '/times its throughput/ { slower = $(NF - 6) < 0.995 } /slower than FP32/ { said = 1 }
    END { exit slower && !said }' out || fail "bench: no advice: $(tail -3 out)"

# FP32 and 16 bit side by side: a row an op, marks and a summary; past the tolerance is no failure
small="--data synthetic:12x12x1:3:64 --model cnn-small --batch 16"
expect 0 '^bf16 against FP32, 2 batches, loss .*:$' "$minim" shadow $small --batches 2
grep -q '^no op is past the tolerance 0.5; largest local error' out || fail "shadow: $(cat out)"
grep -qE '^conv1 conv2d_moments +forward +bf16 +[0-9]' out || fail "shadow: $(cat out)"
grep -qE '^bn1 batch_norm_relu_backward +backward +bf16 +[0-9]' out || fail "shadow: $(cat out)"
grep -q PAST out && fail "shadow: $(cat out)"
expect 0 'ops past the tolerance 1e-05, first conv1 conv2d_moments;' "$minim" shadow $small --amp fp16 --tolerance 1e-5
grep -qE '^conv1 conv2d_moments .*  PAST$' out || fail "shadow: $(cat out)"
expect 0 '^\{"amp":"bf16",.*"rows":\[\{"layer":"conv1","op":"conv2d_moments","backward_of":"","direction":"forward",' \
    "$minim" shadow $small --json --rules relu=FP32
[ "$(wc -l <out)" = 1 ] || fail "shadow --json: not one line"
grep -q '"op":"relu","backward_of":"","direction":"forward","occurrence":0,"dtype":"f32"' out || fail "shadow --rules"
expect 0 'train' "$minim" train --data synthetic:12x12x1:3:64 --model cnn-small --steps 2 --checkpoint shadow.st
cp shadow.st shadow.old
expect 0 'no op is past' "$minim" shadow --checkpoint shadow.st --batches 20
same shadow.st shadow.old
expect 1 'must be f16 or bf16' "$minim" shadow $small --amp off
expect 1 'No such file' "$minim" shadow --checkpoint nothing.st
expect 2 '--batches: expected a whole number' "$minim" shadow --batches 0
expect 1 'tolerance must not be negative' "$minim" shadow $small --tolerance -1

# the table of ops keeps its columns, and one step is one step
"$minim" ops | awk 'NR == 1 { at = index($0, "autocast") } /^$/ { exit }
    NR > 1 && substr($0, at - 1, 2) !~ /^ [A-Z]/ { print; bad = 1 } END { exit bad }' >out ||
    fail "ops: out of its column: $(cat out)"
expect 0 ': 1 step, ' "$minim" train $data --steps 1

# a pass op by op
expect 0 '^conv2d_relu +conv2 +forward +LOWER +f16 +f16 f16 f16 +f16 +kernel$' "$minim" graph --amp fp16
grep -qE '^relu_backward +conv1 +backward +- +- +f16 f16 +f16 ' out || fail "graph: $(cat out)"
grep -q update out && fail "graph: a step that nobody asked for"
expect 0 '^sgd_step +- +update ' "$minim" graph --amp fp16 --step --model resnet8 --data synthetic:9x9x3:4
expect 0 '^relu +relu1 +forward +FP32\* +bf16 +f32 +f32 ' "$minim" graph --amp bf16 --rules relu=FP32 --forward-only
grep -q backward out && fail "graph: a backward pass in spite of --forward-only"
expect 0 '^digraph' "$minim" graph --format dot
"$minim" graph --amp fp16 --batch 3 --output graph.dot || fail "graph --output graph.dot"
grep -q '\[3,28,28,1\] f32' graph.dot || fail "graph.dot: not the batch of 3"
"$minim" graph --output graph.txt --threads 1 || fail "graph --output graph.txt"
grep -qE '^op +layer' graph.txt || fail "graph.txt is no table"
expect 2 'ends in none of' "$minim" graph --output graph.pdf
expect 2 'ends in none of' "$minim" graph --output graph
expect 2 '--format: expected table' "$minim" graph --format png
expect 2 'exclude each other' "$minim" graph --format dot --json
expect 2 '--step needs' "$minim" graph --step --forward-only
expect 1 'no such op in "nothing=KEEP"' "$minim" graph --rules nothing=KEEP
expect 1 'at least 12x12' "$minim" graph --data synthetic:4x4x1:3
echo kept >old.svg
expect 1 'needs Graphviz' env PATH=/nowhere "$minim" graph --output old.svg
[ "$(cat old.svg)" = kept ] || fail "graph: a failure changed the file"
mkdir -p bin
printf '#!/bin/sh\nexit 3\n' >bin/dot
chmod +x bin/dot
expect 1 'dot: Graphviz failed' env PATH="$work/bin" "$minim" graph --output old.svg
[ "$(cat old.svg)" = kept ] || fail "graph: a failed dot changed the file"
rm -r bin old.svg graph.dot graph.txt
if command -v dot >/dev/null; then
    for model in lenet5 cnn-small resnet8; do # labelled edges, and many
        expect 0 '</svg>' "$minim" graph --model $model --amp fp16 --step --format svg
    done
fi

# broken data files
mkdir idx
printf '\0\0\10\3\0\0\0\2\0\0\0\34\0\0\0\34' >idx/train-images-idx3-ubyte
printf '\0\0\10\1\0\0\0\2\1\2' >idx/train-labels-idx1-ubyte
cp idx/train-images-idx3-ubyte idx/t10k-images-idx3-ubyte
cp idx/train-labels-idx1-ubyte idx/t10k-labels-idx1-ubyte
expect 1 'train-images-idx3-ubyte' "$minim" train --data mnist:idx
head -c $((2 * 784)) /dev/zero >>idx/train-images-idx3-ubyte
cp idx/train-images-idx3-ubyte idx/t10k-images-idx3-ubyte
expect 0 'lenet5 on mnist' "$minim" train --data mnist:idx --epochs 1 --validation 0 --quiet
printf '\0\0\10\1\0\0\0\2\1\13' >idx/train-labels-idx1-ubyte
expect 1 'label' "$minim" train --data mnist:idx
printf 'GIF89a, not IDX at all' >idx/train-labels-idx1-ubyte
expect 1 'train-labels-idx1-ubyte' "$minim" train --data mnist:idx

# full disk, and writes cut short: an error, and the old file as it was
if [ -e /dev/full ]; then
    expect 1 '/dev/full' "$minim" train $data --epochs 1 --log /dev/full
    "$minim" ops >/dev/full 2>err && fail "ops >/dev/full succeeded"
fi
printf 'old' >kept.safetensors
(
    trap '' XFSZ
    ulimit -f 8
    exec "$minim" train $data --epochs 1 --checkpoint kept.safetensors
) >out 2>err
[ $? = 1 ] || fail "a cut-off checkpoint is not exit 1: $(cat err)"
[ "$(cat kept.safetensors)" = old ] || fail "a failed write changed the old checkpoint"
[ "$(find . -name 'kept*' | wc -l)" = 1 ] || fail "a failed write left a file: $(ls)"

# no memory (a sanitizer's address space is too large to limit)
if ! grep -qa __asan_init "$minim"; then
    (
        ulimit -v 50000
        exec "$minim" train $data --epochs 1 --model cnn-small --threads 2 --checkpoint memory.st
    ) >out 2>err
    [ $? = 1 ] && grep -q '^minim: train: .*no memory' err || fail "no memory: $(cat err)"
    [ ! -e memory.st ] || fail "a run out of memory left a checkpoint"
fi

# same bits: two runs, and any number of threads, in every precision; and after a resume
for amp in off bf16 fp16; do
    run="$minim train $data --amp $amp --epochs 2 --seed 5"
    $run --threads 1 --checkpoint "$amp-1.st" >/dev/null || fail "train $amp"
    for threads in 2 3 5; do
        $run --threads $threads --checkpoint "$amp-$threads.st" >/dev/null || fail "train $amp"
        same "$amp-1.st" "$amp-$threads.st"
    done
    $run --threads 2 --stop-after 8 --checkpoint part.st >/dev/null || fail "stop-after $amp"
    $run --threads 1 --resume part.st --checkpoint resumed.st >/dev/null || fail "resume $amp"
    same "$amp-1.st" resumed.st
    expect 0 'accuracy' "$minim" eval --checkpoint "$amp-1.st" --data synthetic:28x28x1:10:192
done
"$minim" train $data --epochs 2 --seed 6 --checkpoint other.st >/dev/null
cmp -s other.st off-1.st && fail "another seed gives the same checkpoint"
expect 1 '--lr' "$minim" train $data --epochs 2 --seed 5 --lr 0.5 --resume part.st
expect 1 '--parameters f32 there, bf16-master here' \
    "$minim" train $data --epochs 2 --seed 5 --parameters bf16-master --resume part.st

# a damaged checkpoint
head -c 3000 off-1.st >cut.st
expect 1 'cut.st' "$minim" eval --checkpoint cut.st --data synthetic:28x28x1:10:192

# machine-readable output
json() { python3 -c 'import json,sys; [json.loads(l) for l in sys.stdin if l.strip()]' || fail "$1: not JSON"; }
if command -v python3 >/dev/null; then
    "$minim" train $data --epochs 1 --json --log log.jsonl | json train
    json log <log.jsonl
    "$minim" eval --checkpoint off-1.st --data synthetic:28x28x1:10:192 --json | json eval
    "$minim" bench --steps 3 --warmup 1 --batch 8 --json | json bench
    "$minim" bench --steps 3 --batch 8 --profile --json | json "bench --profile"
    "$minim" range --data synthetic:28x28x1:10:64 --steps 2 --batch 16 --json | json range
    "$minim" models --json --data synthetic:9x9x1:4 | json models
    "$minim" ops --json | json ops
    "$minim" graph --json --step --amp fp16 | json graph
    "$minim" info --json | json info
    "$minim" compare $data --epochs 1 --report report --json | json compare
    json report <report/report.json
    grep -q '"data":"synthetic:28x28x1:10:192"' report/report.json || fail "report: which data?"
    # what is not finite is a string, and bytes that are no text do not spoil a line
    "$minim" train $data --steps 3 --lr 1e6 --json >out || fail "a diverged run"
    grep -q '"train_loss":"nan"' out || fail "a loss that is not a number: $(cat out)"
    grep -q '"validation_loss":null' out || fail "a loss that was not measured: $(cat out)"
    json diverged <out
fi

# the monitor: what was first not finite, and the same weights without it
expect 0 'not finite in [1-9][0-9]* of them, first: step 1: cross_entropy_backward' "$minim" train $data \
    --amp fp16 --steps 6 --init-scale 1e9 --monitor --log monitor.log --checkpoint monitor.st
grep -q '^{"event":"overflow","step":1,"op":"cross_entropy","layer":"","direction":"backward"' monitor.log ||
    fail "the log does not name what overflowed"
"$minim" train $data --amp fp16 --steps 6 --init-scale 1e9 --checkpoint without.st >/dev/null
same monitor.st without.st
expect 0 '^monitor: 2 steps$' "$minim" train $data --amp fp16 --steps 6 --monitor-every 5
expect 0 'not finite in 1 of them' "$minim" train $data --amp fp16 --steps 1 --init-scale 1e9 --retry 2 --monitor
expect 2 '--monitor-every: expected a whole number' "$minim" train --monitor-every 0
expect 0 '^fp16 .* 0%|^fp16 .*e-[0-9]+%' "$minim" compare $data --steps 4 --precisions fp32,fp16 --monitor \
    --report watched
grep -q 'Magnitudes by layer, fp16' watched/report.html || fail "report.html has no pictures"
grep -qE '"underflow_fraction":[0-9]' watched/report.json || fail "report.json has no underflow"
if command -v python3 >/dev/null; then
    json watched <watched/report.json
    json monitor <monitor.log
    "$minim" train $data --amp fp16 --steps 6 --init-scale 1e9 --monitor --json | json train-monitor
fi

# a run whose loss scale collapses fails, and does not take a comparison with it
collapse="$data --lr 30 --init-scale 1 --epochs 40"
expect 1 'step [0-9]+: the loss scale' "$minim" train $collapse --amp fp16
expect 0 '^fp16 +1 +collapsed at step [0-9]+' "$minim" compare $collapse --precisions fp32,fp16 \
    --report collapsed
grep -q '1 of 1 runs collapsed or diverged; not enough seeds to say' out || fail "compare: $(cat out)"
grep -qE '"collapsed_step":[0-9]+,"test_accuracy":null' collapsed/report.json ||
    fail "report.json does not say what collapsed"
expect 0 '3 of 3 runs collapsed or diverged; not enough seeds to say' "$minim" compare $data --steps 3 \
    --lr 1e6 --precisions fp32,bf16 --seeds 3
grep -q '  diverged$' out || fail "the table does not say what diverged: $(cat out)"
grep -q 'within the stated bound' out && fail "a diverged run was judged: $(cat out)"
expect 0 '^precision' "$minim" compare $data --steps 2 --precisions fp32,fp16 --seed 123456789 \
    --init-scale 1.52588e-10 --lr 1e3
[ "$(grep -E '^(precision|fp)' out | grep -v '(n = ' | awk '{print length}' | sort -u | wc -l)" = 1 ] ||
    fail "the table's columns are not aligned: $(cat out)"
grep -q '1 run collapsed, at step' collapsed/report.html || fail "report.html does not say it"
"$minim" compare $data --epochs 1 --seeds 3 --report report >out || fail compare
for file in report/report.json report/report.html; do [ -s "$file" ] || fail "no $file"; done
grep -q 'no sign of convergence' report/report.json || fail "report.json lacks its warning"

# on a narrow terminal the line that is redrawn does not wrap (a chroot may have no pseudo-terminals)
if command -v stty >/dev/null && script -qec true typescript >/dev/null 2>&1 </dev/null; then
    script -qec "stty cols 40; $minim train --data synthetic:28x28x1:10:600 --epochs 1" typescript \
        >out 2>&1 </dev/null
    tr '\r' '\n' <out | grep -o 'epoch .* step .*' >drawn || fail "nothing was drawn: $(cat out)"
    [ "$(wc -L <drawn)" -lt 40 ] || fail "drawn wider than the terminal: $(cat drawn)"
fi

# interrupt: finishes the step, writes the checkpoint, exits 130
"$minim" train --data synthetic:28x28x1:10:20000 --epochs 1000 --quiet --checkpoint int.st --log int.log \
    >out 2>err &
pid=$!
for ((i = 0; i < 300; i++)); do # a busy machine may take long to begin
    if [ -s int.log ] || ! kill -0 $pid; then break; fi
    sleep 0.2
done
kill -INT $pid
wait $pid
[ $? = 130 ] || fail "interrupted train did not exit with 130: $(cat err)"
[ -s int.st ] || fail "interrupted train wrote no checkpoint"
"$minim" compare --data synthetic:28x28x1:10:20000 --epochs 1000 --quiet --report int-report >out 2>err &
pid=$!
for ((i = 0; i < 300; i++)); do
    if [ -d int-report ] || ! kill -0 $pid; then break; fi
    sleep 0.2
done
kill -INT $pid
wait $pid
[ $? = 130 ] || fail "interrupted compare did not exit with 130: $(cat err)"
grep -q '^report: ' out && fail "interrupted compare names a report that it has not written"

echo "$failures failures"
[ "$failures" = 0 ]
