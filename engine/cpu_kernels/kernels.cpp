// Exports the kernels as plain C functions over tensors that PyTorch owns, for ctypes.
#include "decoder.h"
#include "draft_context.h"

template <class W, class KV>
static void decode(const Decoder<W, KV> &model, const Pass &pass) {
#pragma omp parallel num_threads(pass.num_threads)
  {
    const Worker<W, KV> worker{model, pass, omp_get_thread_num(), omp_get_num_threads()};
    worker.run();
  }
}

template <class W>
static void linear(const float *x, const W *w, Finish finish, float *y, int64_t M, int64_t K,
                   int64_t N, int64_t num_threads) {
#pragma omp parallel num_threads(num_threads)
  {
    int64_t begin, end;
    share(N, omp_get_thread_num(), omp_get_num_threads(), &begin, &end);
    linear_columns(begin, end, M, x, K, w, K, finish, y, N);
  }
}

// Return 0 and do nothing when an id, slot, page or position is out of range.
template <class W>
static int64_t draft_round(const Draft<W> &model, const Round &round) {
  if (!is_within(model, round)) return 0;
#pragma omp parallel num_threads(round.num_threads)
  {
    const Drafter<W> drafter{model, round, omp_get_thread_num(), omp_get_num_threads()};
    drafter.run();
  }
  return 1;
}

// Return 0 and do nothing when a slot or position is out of range.
template <class W>
static int64_t draft_context(const ContextWrite<W> &call) {
  if (!is_within(call)) return 0;
#pragma omp parallel num_threads(call.num_threads)
  {
    const ContextWorker<W> worker{call, omp_get_thread_num(), omp_get_num_threads()};
    worker.run();
  }
  return 1;
}

// Names end with the precision of matrices, and of keys and values where it differs.
extern "C" {

// y[M, N] = x[M, K] w[N, K]^T * scale[N] + bias[N]; scale and bias may be null.
void dspark_linear(const float *x, const float *w, const float *scale, const float *bias, float *y,
                   int64_t M, int64_t K, int64_t N, int64_t num_threads) {
  linear(x, w, {scale, bias}, y, M, K, N, num_threads);
}
void dspark_linear_bfloat16(const float *x, const bfloat16 *w, const float *scale,
                            const float *bias, float *y, int64_t M, int64_t K, int64_t N,
                            int64_t num_threads) {
  linear(x, w, {scale, bias}, y, M, K, N, num_threads);
}
void dspark_linear_int8(const float *x, const int8_t *w, const float *scale, const float *bias,
                        float *y, int64_t M, int64_t K, int64_t N, int64_t num_threads) {
  linear(x, w, {scale, bias}, y, M, K, N, num_threads);
}

void dspark_decode(const Decoder<float, float> *model, const Pass *pass) { decode(*model, *pass); }
void dspark_decode_bfloat16(const Decoder<bfloat16, bfloat16> *model, const Pass *pass) {
  decode(*model, *pass);
}
void dspark_decode_int8(const Decoder<int8_t, float> *model, const Pass *pass) {
  decode(*model, *pass);
}
void dspark_decode_int8_bfloat16(const Decoder<int8_t, bfloat16> *model, const Pass *pass) {
  decode(*model, *pass);
}

int64_t dspark_draft_round(const Draft<float> *model, const Round *round) {
  return draft_round(*model, *round);
}
int64_t dspark_draft_round_bfloat16(const Draft<bfloat16> *model, const Round *round) {
  return draft_round(*model, *round);
}
int64_t dspark_draft_round_int8(const Draft<int8_t> *model, const Round *round) {
  return draft_round(*model, *round);
}

int64_t dspark_draft_context(const ContextWrite<float> *call) { return draft_context(*call); }
int64_t dspark_draft_context_bfloat16(const ContextWrite<bfloat16> *call) {
  return draft_context(*call);
}
int64_t dspark_draft_context_int8(const ContextWrite<int8_t> *call) {
  return draft_context(*call);
}

// Floats of one state of Pass::states.
int64_t dspark_state_size(int64_t head_dim) { return state_size(head_dim); }

// Whether there is code for attention with heads of this width.
int64_t dspark_has_head_dim(int64_t head_dim) { return can_attend(head_dim); }

}
