// Called through ctypes: plain C functions over float32 tensors that PyTorch owns.
#include "decoder.h"
#include "draft_context.h"

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

void dspark_decode(const Decoder *model, const Pass *pass) {
#pragma omp parallel num_threads(pass->num_threads)
  {
    const Worker worker{*model, *pass, omp_get_thread_num(), omp_get_num_threads()};
    worker.run();
  }
}

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
int64_t dspark_has_head_dim(int64_t head_dim) { return attend(nullptr, head_dim); }

}
