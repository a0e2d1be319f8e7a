#!/bin/sh
# defects.sh - plants defects in the CUDA kernels and in their host code, one at a time, and shows that the suite that is
# told notices.
#
# In a copy of the tree each defect below is made by one sed command, and the suite is built (for the host: no GPU; those
# of host code want the toolkit and are left out without it) and run. Takes some minutes, and is not a part of the tests.
#
#   tests/nn/cuda/defects.sh [NAME...]      all defects, or only these
#
# Exit: 0 when all are noticed, 1 when one is missed, 2 when a defect no longer applies.
set -u

root=$(CDPATH='' cd -- "$(dirname -- "$0")/../../.." && pwd)
copy=$(mktemp -d "${TMPDIR:-/tmp}/chorale-defects.XXXXXX")
trap 'rm -rf "$copy"' EXIT
trap 'exit 130' INT TERM

# name @ file in nn/cuda @ sed command @ suite
defects() {
    cat <<'LIST'
statistics-barrier@kernels/norm.cu@/^    statistics_kernel(/,/^}/{/^    __syncthreads();/d}@norm
tree-barrier@kernels/norm.cu@/^__device__ double lanes_sum/,/^}/{/^        __syncthreads();/d}@norm
block-sum-barrier@kernels/device.h@/block_sum(N value/,/^}/{/const N sum/,/return/{/__syncthreads/d}}@loss
row-too-many@kernels/norm.cu@s/^    for (; inside && row < end; row += lanes)/    for (; inside \&\& row <= end; row += lanes)/@norm
part-too-short@kernels/norm.cu@s/return left < per ? left : per;/return left < per ? left : per - (per > 4);/@norm
biased-variance@kernels/norm.cu@s/variance \* rows \/ (rows - 1)/variance/@norm
addend-forgotten@kernels/norm.cu@s/v\[k\] += z\[k\];/v[k] += z[k] * (k != 5);/@norm
second-gradient-lost@kernels/norm.cu@s/g\[k\] += more\[k\];/g[k] += k < 7 ? more[k] : 0;/@norm
mask-bit-shifted@kernels/mask.h@s/<< k;/<< (k ^ 1);/@norm
mask-beyond-the-end@kernels/mask.h@s/(k < n \&\& element_open/(element_open/@norm
relu-hides-nan@element.h@s/return !(y <= 0);/return y > 0;/@norm
no-welford@element.h@s/\*squares = fmaf(before, value - \*mean, \*squares);/*squares = fmaf(before, before, *squares);/@norm
last-maximum@kernels/pool.cu@s/!(v\[k\] <= best\[k\])/v[k] >= best[k]/@pool
window-left-out@kernels/pool.cu@s/oy <= (iy + PADDING) \/ STRIDE/oy <= iy \/ STRIDE/@pool
half-a-warp-summed@kernels/loss.cu@/^template <typename N> __device__ N warp_sum/,/^}/s/FULL_WARP \/ 2/FULL_WARP \/ 4/@loss
no-smoothing@kernels/loss.cu@s/ - smooth;/;/@loss
tie-for-the-label@kernels/loss.cu@s/k < label)/k > label)/@loss
contracted@element.h@s/(g + decay \* \*w);/fmaf(decay, *w, g);/@update
copy-not-padded@kernels/update.cu@s/within \/ tensor.channels \* tensor.padded/within/@update
entry-too-far@kernels/update.cu@s/e + count <= tensor.offset + tensor.count/e <= tensor.offset + tensor.count/@update
head-skipped@kernels/device.h@s/begin = p \* W < span.shift ? 0 : p \* W - span.shift/begin = p * W/@collective
not-rounded-between@kernels/collective.cu@s/result.element\[k\] = last ? finish(v) : as::put(v);/result.element[k] = finish(v);/@collective
zeros-alike@element.h@/element_min_f32/,/^}/s/element_bits(a) >> 31 ? a : b/a/@collective
tail-too-long@kernels/device.h@s/begin == W \&\& end <= span.count/begin == W/@convert
double-rounding@element.h@s/magnitude + 0xfff/magnitude + 0x1000/@convert
crop-one-further@element.h@s/ceilf(begin + extent) - 1;/ceilf(begin + extent);/@images
flip-one-further@kernels/images.cu@s/out_width - 1 - x/out_width - 2 - x/@images
no-wait-for-copies@input.c@s/return input->ops->order(input->ops->compute(input->device), to->copied);/return STATUS_OK;/@host
result-before-step@cuda.c@s/TRY(cuda_check(cudaEventSynchronize(slot->end), "a step"));//@host
zeroed-in-the-compute-queue@device.c@s/= cuda_of(device)->zeroing.stream;/= cuda_of(device)->compute.stream;/@host
slots-shared@cuda.c@s/(int)(backend->put % CUDA_SLOTS)/0/@host
padding-forgotten@net.c@s/\.padding = layer->padding,/.padding = layer->kernel > 3 ? layer->padding : layer->padding * (layer->stride == 1),/@host
workspace-short@net.c@s/TRY(take(net, net->workspace_bytes, &net->workspace));/TRY(take(net, net->workspace_bytes \/ 2, \&net->workspace));/@host
norm-workspace-forgotten@net.c@s/bytes = cuda_norm_workspace/bytes = 0 * cuda_norm_workspace/@host
stale-working-copies@net.c@s/TRY(cuda_weights_pack(net->weights, pass->parameters));/static int packed; if (packed++ < 1) TRY(cuda_weights_pack(net->weights, pass->parameters));/@host
beta-not-zero@linear.c@s/const float zero = 0;/const float zero = 1;/@host
convolution-beta@dnn_legacy.c@s/const float one = 1, zero = 0;/const float one = 1, zero = 1;/@host
failing-engine-kept@dnn_convolution.c@s/put_first(direction, trial.plan);//@host
failing-engine-recalled@dnn_convolution.c@/^static enum status find_line/,/^}/s/if (\*line != NULL \&\& strcmp(.*/if (false)/@host
unproved-engines@net.c@s/TRY_TO(done, prove_all(net, memory));//@host
nesterov-as-momentum@element.h@/^ELEMENT void element_nesterov/,/^}/s/(decayed + momentum \* \*u)/*u/@update
loss-scale-stays@net.c@s/cuda_weights_settle(net->weights, pass->gradients, filter, 1 \/ net->request.loss_scale)/cuda_weights_settle(net->weights, pass->gradients, filter, 1)/@host
second-gradient-lost@net.c@s/\.more = address(net, node->more),//@host
input-overwritten@plan.c@s/keep_until(plan, plan->value\[node->input\].span, again ? backward : k);/keep_until(plan, plan->value[node->input].span, k);/@host
gradient-overwritten@plan.c@s/    keep_until(plan, node->gradient, moment);//@host
mask-overwritten@plan.c@s/    keep_until(plan, node->kept, backward);//@host
swapped-product@linear.c@/^enum status cuda_linear_backward_data/,/^}/s/\.of_a = CUBLAS_OP_N/.of_a = CUBLAS_OP_T/@host
graph-of-other-state@replays.c@s/memcmp(a->address, b->address, sizeof a->address) == 0;/true;/@host
forward-order@weights.c@s/to_native ? channels : taps, to_native ? taps : channels/channels, taps/@host
flag-forgotten@cuda.c@s/\.not_finite = backend->not_finite};/};/@host
no-running-statistics@net.c@s/\.running_mean = state,/.running_mean = training ? state : net->work[k].mean,/@host
labels-not-copied@input.c@/^enum status cuda_input_convert/,/^}/{/TRY(input->ops->copy/,/\*batch->labels));/d}@host
boxes-forgotten@input.c@s/TRY(copy_boxes(input, to, batch));/;/@host
leak@net.c@s/net->row_rank, net->loss,/net->row_rank, NULL,/@host
smoothing-in-evaluation@net.c@s/training ? net->request.label_smoothing : 0/net->request.label_smoothing/@host
profile-disturbs@cuda.c@s/\.parameters = backend->latest.parameters, .state = profiler->state/.parameters = backend->latest.parameters, .state = backend->latest.state/@host
LIST
}

build() {
    cmake --build "$copy/build" --target "$1" >"$copy/build.log" 2>&1 || {
        tail -n 20 "$copy/build.log" >&2
        return 1
    }
}

passes() {
    IPATH_NO_BACKTRACE=1 timeout -k 5 300 "$copy/build/tests/nn/cuda/$1" >"$copy/run.log" 2>&1
}

program_of() {
    case $1 in
    host) echo nn_test_cuda ;;
    *) echo "nn_test_kernels_$1" ;;
    esac
}

mkdir "$copy/tree" && (cd "$root" && tar -cf - --exclude=./build --exclude=./.git --exclude=./results .) |
    tar -xf - -C "$copy/tree" || exit 2
if ! cmake -S "$copy/tree" -B "$copy/build" -G Ninja -DCMAKE_BUILD_TYPE=Release >"$copy/build.log" 2>&1 ||
    ! build nn_kernels_tests; then
    echo "defects.sh: the tree itself does not build" >&2
    exit 2
fi
host=""
if grep -q '^CUDNN_LIBRARY:.*=/' "$copy/build/CMakeCache.txt"; then
    host=host
    build nn_test_cuda || exit 2
fi
for suite in norm pool loss update collective convert images $host; do
    passes "$(program_of "$suite")" || {
        echo "defects.sh: $suite fails without any defect" >&2
        exit 2
    }
done

failed=0
defects >"$copy/list"
while IFS='@' read -r name file command suite <&3; do
    case " $* " in *" $name "* | "  ") ;; *) continue ;; esac
    program=$(program_of "$suite")
    if [ "$suite$host" = host ]; then
        printf '%-26s %-12s %s\n' "$name" "$suite" "left out: no CUDA toolkit"
        continue
    fi
    target=$copy/tree/nn/cuda/$file
    cp "$target" "$copy/good"
    sed "$command" "$copy/good" >"$target"
    if cmp -s "$copy/good" "$target" || ! build "$program"; then
        echo "defects.sh: $name no longer applies: change its sed command" >&2
        exit 2
    fi
    if passes "$program"; then
        verdict=missed failed=1
    else
        verdict=noticed
    fi
    printf '%-26s %-12s %s\n' "$name" "$suite" "$verdict"
    cp "$copy/good" "$target"
done 3<"$copy/list"
exit $failed
