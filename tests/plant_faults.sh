#!/usr/bin/env bash
# Whether the tests of mixed precision would notice: plants one fault at a time in a copy of the
# sources, builds, and runs the tests that have to fail. Not one of ctest's checks: minutes of
# compiling. A line that is not in its file exactly once is an error, so that the list below cannot
# rot unseen.
# Usage: plant_faults.sh SOURCE_DIR [NAME]   (only the faults whose name contains NAME)
set -euo pipefail
export LC_ALL=C CK_DEFAULT_TIMEOUT=0
source=$1
only=${2:-}
scaler="test_amp test_amp_state test_scaler_property"
targets="$scaler test_amp_orders test_autocast test_optim test_optimizers test_autograd test_convert
  test_train test_retry test_skips test_winograd test_rounding test_monitor test_monitor_steps
  test_trace test_shadow test_op_check test_amp_cases test_amp_cases_autocast"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
copy=$work/copy
failed=0
planted=0

die() {
    printf 'plant_faults: %s\n' "$*" >&2
    exit 1
}

build() {
    cmake --build "$work/build" --parallel "${JOBS:-$(nproc)}" --target "$@" >"$work/log" 2>&1
}

# failing TESTS...: those that fail, each with the first of its functions to do so.
failing() {
    local test
    for test in "$@"; do
        [[ " ${targets//$'\n'/ } " == *" $test "* ]] || die "$test is not one of the targets"
        timeout 300 "$work/build/tests/$test" >"$work/log" 2>&1 && continue
        printf ' %s' "$(sed -n 's/^[^ ]*:[0-9]*:[FE]:[^:]*:\([^:]*\):.*/\1/p' "$work/log" |
            head -1 | sed "s/^/$test:/")"
    done
}

# fault NAME FILE OLD NEW TESTS...: plants NEW for OLD, and has TESTS find it.
fault() {
    local name=$1 file=$copy/$2 old=$3 new=$4 text rest found
    [[ "$name" == *"$only"* ]] || return 0
    text=$(<"$file")
    rest=${text//"$old"/}
    [ $((${#text} - ${#rest})) -eq ${#old} ] || die "$2 has not exactly one \"$old\""
    printf '%s\n' "${text/"$old"/"$new"}" >"$file"
    build "${@:5}" || { tail -20 "$work/log"; die "does not compile: $name"; }
    found=$(failing "${@:5}")
    printf '%-42s %s\n' "$name" "${found:- NOT CAUGHT}"
    [ -n "$found" ] || failed=$((failed + 1))
    planted=$((planted + 1))
    printf '%s\n' "$text" >"$file"
}

mkdir "$copy"
tar -C "$source" --exclude='./build*' --exclude=./.git -cf - . | tar -C "$copy" -xf -
launcher=()
! command -v ccache >/dev/null || launcher=(-DCMAKE_C_COMPILER_LAUNCHER=ccache)
cmake -S "$copy" -B "$work/build" "${launcher[@]}" -DCMAKE_BUILD_TYPE=Debug \
    "-DCMAKE_C_FLAGS_DEBUG=-O1 -w" -DMINIM_SHARED=OFF -DMINIM_PROGRAMS=OFF >"$work/log" 2>&1 ||
    { cat "$work/log"; die "cannot configure"; }
# shellcheck disable=SC2086 # names of tests
build $targets || { tail -20 "$work/log"; die "cannot build"; }
# shellcheck disable=SC2086 # names of tests
found=$(failing $targets)
[ -z "$found" ] || die "without any fault these fail:$found"

# shellcheck disable=SC2086 # names of tests
{
    # -- the scale --
    fault "growth after one update too many" ops/reference/optim.c \
        'record[MN_SCALER_TRACKER] >= (double)' 'record[MN_SCALER_TRACKER] > (double)' $scaler
    fault "backoff factor inverted" ops/reference/optim.c \
        'before * a->backoff_factor' 'before / a->backoff_factor' $scaler
    fault "overflow remembered after update" ops/reference/optim.c \
        'record[MN_SCALER_FOUND_INF] = 0;' ';' $scaler
    fault "collapse not latched" ops/reference/optim.c \
        'record[MN_SCALER_COLLAPSED] = 1;' ';' $scaler
    fault "scale narrowed in the caller's mode" amp/grad_scaler.c \
        '    return wide;' '    return (double)(float)scale;' $scaler
    fault "scale not in the checkpoint" amp/scaler_state.c \
        'record[MN_SCALER_SCALE] = record[MN_SCALER_SCALE_USED] = scale;' \
        'record[MN_SCALER_SCALE_USED] = scale;' $scaler test_train
    fault "tracker not in the checkpoint" amp/scaler_state.c \
        'record[counts[i].slot] = (double)count;' 'record[counts[i].slot] = i ? (double)count : 0;' \
        $scaler test_train
    fault "scaler not in the checkpoint" train/checkpoint.c \
        'MN_TRY(mn_grad_scaler_save_state(run->scaler, dict));' '' test_train
    # -- gradients --
    fault "finite check dropped" ops/cpu/bodies.h \
        'found |= not_finite(g[i]) | not_finite(result);' 'found |= 0;' $scaler
    fault "check only before the division" ops/cpu/bodies.h \
        'not_finite(g[i]) | not_finite(result)' 'not_finite(g[i])' $scaler test_amp_cases
    fault "gradients of an older scale divided" amp/grad_scaler.c \
        'p->leaf->scaling != scaler->scaling)' 'false)' $scaler
    fault "weight of a micro-batch ignored" ops/backward_layer.c \
        '&call->in_view[0], forward->weight)' '&call->in_view[0], 1)' $scaler
    fault "micro-batches replace each other" autograd/leaf.c \
        'static const mn_blend_attributes sum = {1, 1};' \
        'static const mn_blend_attributes sum = {0, 1};' $scaler
    fault "scaled gradients clipped and stepped" optim/optimizer.c \
        'if (state == MN_GRAD_SCALED)' 'if (false)' $scaler
    fault "broken-off overflow kept" amp/grad_scaler.c \
        'if (scaler->checks == 1)' 'if (false)' $scaler
    fault "overflow of a freed scaler kept" optim/optimizer.c \
        'if (optimizer->stale)' 'if (false)' test_amp_orders
    fault "loss scaled twice" autograd/backward.c \
        'if (node->scaled && node->scaling != 0)' 'if (false)' test_amp_orders
    fault "version check dropped" autograd/backward.c \
        'if (!saved->tensor || saved->tensor->storage->version == saved->version)' 'if (true)' \
        test_scaler_property test_autograd
    # -- the step --
    fault "skip not honored by Adam" ops/cpu/optim.c \
        'if (!skip)' 'if (!skip || call->op == &mn_ops[MN_OP_adam_step])' test_scaler_property \
        test_optimizers
    fault "draw not added" ops/cpu/bodies.h \
        '(bits[i] + drawn) & 0xFFFF0000' 'bits[i] & 0xFFFF0000' test_rounding
    fault "master deaf to writes" ops/cpu/optim.c \
        'back[j] == p[j] ? master[j] : p[j]' 'master[j]' test_rounding
    fault "skipped step counted as applied" ops/reference/optim.c \
        'record[skipped ? MN_OPT_SKIPPED : MN_OPT_APPLIED] += 1;' 'record[MN_OPT_APPLIED] += 1;' \
        $scaler
    fault "one optimizer not told of an overflow" ops/cpu/optim.c \
        'scaler[MN_SCALER_FOUND_INF] = optimizer[MN_OPT_FOUND_INF] = 1;' \
        'scaler[MN_SCALER_FOUND_INF] = 1;' $scaler
    fault "shadow not rewritten" optim/step.c \
        'count = SHADOW + k + 1;' 'count = SHADOW;' test_autocast test_optim
    fault "stale shadow used" amp/autocast.c \
        'shadow->storage && shadow->version == x->storage->version' 'shadow->storage' \
        test_autocast test_amp_cases_autocast
    fault "view of a shadow handed out" amp/autocast.c \
        '!(op->flags & MN_OP_VIEW)' 'true' test_amp_orders
    fault "clip factor above 1" ops/reference/optim.c \
        'clip > 1 ? 1 : clip;' 'clip;' test_scaler_property test_optim
    # -- retries --
    fault "retry from poisoned statistics" train/loop.c \
        'MN_TRY(mn_module_buffers_restore(run->buffers));' '' test_retry
    fault "retry with other masks" train/loop.c \
        'run->context, run->progress.step + 1, micro_step' \
        'run->context, run->progress.step + 1 + run->trainer.retries, micro_step' test_retry
    fault "retry with the first batch only" train/loop.c \
        'images + done * info->height' 'images + 0 * info->height' test_retry
    fault "growth taken for trouble" train/trainer.c \
        'scale > 1.0001 * s->scale' 'false' test_skips
    fault "one attempt too many" train/loop.c \
        'run->trainer.retries == run->options.retry' 'run->trainer.retries > run->options.retry' \
        test_retry
    # -- what runs where --
    fault "an overridden rule not heeded" amp/autocast.c \
        '*overridden ? autocast->rules[op - mn_ops] : op->rule' 'op->rule' test_autocast test_trace
    fault "what is written in place cast" amp/autocast.c \
        'if (mutated || op->outputs == 0 ||' 'if (' test_autocast test_amp_orders
    fault "override not traced" amp/trace.c \
        '.overridden = call->cast.overridden,' '' test_trace
    fault "autocast's casts not traced as such" amp/trace.c \
        '.is_cast = call->cast.is_cast,' '' test_trace
    # -- the monitor --
    fault "later overflow for the first" ops/cpu/inspect.c \
        'ring[1] == a->key' 'false' test_monitor test_monitor_steps
    fault "input of an overflow not looked at" ops/cpu/inspect.c \
        'if (!is_finite(call, &call->in[i]))' 'if (false)' test_monitor test_monitor_steps
    fault "infinity counted as NaN" ops/cpu/inspect.c \
        'MN_INSPECT_INFINITIES + (x > INFINITE)' 'MN_INSPECT_INFINITIES + (x >= INFINITE)' \
        test_monitor test_monitor_steps
    fault "histogram off by one" ops/cpu/inspect.c \
        'bin = (x >> 52) - 1023' 'bin = (x >> 52) - 1022' test_monitor
    fault "updates of skipped steps counted" ops/cpu/inspect.c \
        '!a->after || record[MN_OPT_FOUND_INF] == 0' 'true' test_monitor test_monitor_steps
    fault "true zeros counted as underflow" ops/convert.c \
        'const bool value = (mn_f32_bits(from[i]) & 0x7FFFFFFFU) != 0;' 'const bool value = true;' \
        test_monitor test_monitor_steps
    fault "masters not watched" amp/monitor.c \
        'call->input_count > MASTER && in[MASTER] ? in[MASTER] : in[P]' 'in[P]' \
        test_monitor test_monitor_steps
    # -- the shadow check --
    fault "masks of another run" amp/shadow.c \
        'if (mode != RUN_LOW) {' 'if (false) {' test_shadow
    fault "running statistics not put back" amp/shadow.c \
        'device->upload(device, o->storage->data, o + 1, o->storage->bytes)' 'MN_OK' test_shadow
    fault "cast not held against its op" amp/shadow.c \
        'if (c->casts[i][0] == x)' 'if (false)' test_shadow
    fault "first past the tolerance is the last" amp/shadow.c \
        'report->past++ == 0' 'report->past++ >= 0' test_shadow
    # -- the check of custom ops --
    fault "no gradient check" amp/op_check.c \
        'mn_gradcheck(context, as_function, c, in, count, &options);' ';' test_op_check
    fault "backward in its own region only" amp/op_check.c \
        's->region != s->backward && s->backward != NOWHERE' 'false' test_op_check
    fault "casts not compared" amp/op_check.c \
        'return x ? mismatch(c, x, text) : MN_OK;' 'return MN_OK;' test_op_check
    fault "any record counts" ops/table.c \
        'if (now[same] == record[same])' 'if (true)' test_op_check
    # -- Winograd --
    fault "what is not finite spreads" ops/cpu/winograd.c \
        'if (!memchr(' 'if (true || !memchr(' test_winograd
    fault "stores counted twice" ops/cpu/winograd.c \
        'counts->stored = stored;' ';' test_winograd
    # -- conversion: the header that nearly all is made of, so last --
    fault "f16 conversion truncates" core/half.h \
        '+ 0xFFFU + (magnitude >> 13 & 1U)) >> 13' ') >> 13' test_convert test_autocast
}
[ $planted -gt 0 ] || die "no fault has \"$only\" in its name"
printf '%d faults, %d not caught\n' $planted $failed
[ $failed -eq 0 ]
