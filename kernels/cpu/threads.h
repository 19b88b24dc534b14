// A thread pool for steps of many short operations.
//
// Every job is a number of independent pieces. Each thread starts with a contiguous share of them
// and then takes pieces from the others' shares, so that a job never waits for a thread that has
// not woken up yet, or that lost its core to another process: whoever runs does the work. Results
// cannot depend on that, since no piece depends on another.
//
// Between jobs a worker spins for some tens of microseconds and then sleeps on a futex: operations
// that follow one another are handed over in about a microsecond, and an idle engine burns nothing.
#pragma once

#include <atomic>
#include <cstdint>

namespace pagelet {

class ThreadPool {
 public:
  // The process's pool. It is never destroyed: its workers end with the process.
  static ThreadPool& instance();

  // The number of threads that work on a job, the caller's included.
  void set_threads(int threads);
  int threads() const { return threads_.load(std::memory_order_relaxed); }

  // Calls body(i) once for every i in [0, count), on several threads, and returns when all are
  // done. While another thread's job runs, the caller does all of its own pieces itself.
  template <class Body>
  void parallel_for(int64_t count, const Body& body) {
    run(count, [](const void* context, int64_t i) { (*static_cast<const Body*>(context))(i); },
        &body);
  }

 private:
  using Piece = void (*)(const void* context, int64_t i);

  struct alignas(64) Share {
    // The job's number, the next piece and the end of this share: one word, so that a piece can
    // only be taken from the job that the taker has seen. Bits: 32, 16, 16.
    std::atomic<uint64_t> word{0};
  };

  static constexpr int kMaxThreads = 256;
  static constexpr int64_t kMaxPieces = 0xffff;

  void run(int64_t count, Piece piece, const void* context);
  void work(uint32_t job, int self);
  bool take(Share& share, uint32_t job, int64_t* index);
  void wait_until_done(uint32_t pieces);
  void worker(int self);

  std::atomic<int> threads_{1};
  int started_ = 0;  // workers, guarded by busy_
  std::atomic<bool> busy_{false};

  // The current job; written only while none runs.
  std::atomic<Piece> piece_{nullptr};
  std::atomic<const void*> context_{nullptr};
  std::atomic<int64_t> count_{0};
  std::atomic<int64_t> grain_{1};  // indices in a piece
  std::atomic<int> participants_{0};

  alignas(64) std::atomic<uint32_t> job_{0};
  std::atomic<uint32_t> sleeping_workers_{0};
  alignas(64) std::atomic<uint32_t> done_{0};
  std::atomic<bool> caller_sleeps_{false};
  Share shares_[kMaxThreads];
};

}  // namespace pagelet
