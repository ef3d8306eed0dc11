// Called through ctypes: plain C functions over tensors that PyTorch owns.
#include "decoder.h"
#include "draft_context.h"

template <class W>
static void decode(const Decoder<W> &model, const Pass &pass) {
#pragma omp parallel num_threads(pass.num_threads)
  {
    const Worker<W> worker{model, pass, omp_get_thread_num(), omp_get_num_threads()};
    worker.run();
  }
}

extern "C" {

// y[M, N] = x[M, K] w[N, K]^T + bias[N]; bias may be null.
void dspark_linear(const float *x, const float *w, const float *bias, float *y, int64_t M,
                   int64_t K, int64_t N, int64_t num_threads) {
#pragma omp parallel num_threads(num_threads)
  {
    int64_t begin, end;
    share(N, omp_get_thread_num(), omp_get_num_threads(), &begin, &end);
    linear_columns(begin, end, M, x, K, w, K, bias, y, N);
  }
}

// Matrices and the pool are float32, or bfloat16.
void dspark_decode(const Decoder<float> *model, const Pass *pass) { decode(*model, *pass); }
void dspark_decode_bfloat16(const Decoder<bfloat16> *model, const Pass *pass) {
  decode(*model, *pass);
}

// Floats of one state of Pass::states.
int64_t dspark_state_size(int64_t head_dim) { return state_size(head_dim); }

// 0, and nothing done, when an id, a slot or a position is none.
int64_t dspark_draft_round(const Draft *model, const Round *round) {
  if (!is_within(*model, *round)) return 0;
#pragma omp parallel num_threads(round->num_threads)
  {
    const Drafter drafter{*model, *round, omp_get_thread_num(), omp_get_num_threads()};
    drafter.run();
  }
  return 1;
}

// Likewise.
int64_t dspark_draft_context(const ContextWrite *call) {
  if (!is_within(*call)) return 0;
#pragma omp parallel num_threads(call->num_threads)
  {
    const ContextWorker worker{*call, omp_get_thread_num(), omp_get_num_threads()};
    worker.run();
  }
  return 1;
}

// Whether there is code for attention with heads of this width.
int64_t dspark_has_head_dim(int64_t head_dim) { return can_attend(head_dim); }

}
