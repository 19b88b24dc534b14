#include "threads.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <thread>

namespace pagelet {
namespace {

constexpr auto kSpin = std::chrono::microseconds(40);

void futex_wait(std::atomic<uint32_t>& word, uint32_t seen) {
  syscall(SYS_futex, &word, FUTEX_WAIT_PRIVATE, seen, nullptr, nullptr, 0);
}

void futex_wake_all(std::atomic<uint32_t>& word) {
  syscall(SYS_futex, &word, FUTEX_WAKE_PRIVATE, INT32_MAX, nullptr, nullptr, 0);
}

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Whether `word` left the value `seen` while this thread spun.
bool spin_while(const std::atomic<uint32_t>& word, uint32_t seen) {
  const auto end = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 16; ++i) {
      if (word.load(std::memory_order_acquire) != seen) return true;
      pause();
    }
  } while (std::chrono::steady_clock::now() < end);
  return false;
}

constexpr uint64_t pack(uint32_t job, uint32_t next, uint32_t end) {
  return uint64_t{job} << 32 | next << 16 | end;
}

}  // namespace

ThreadPool& ThreadPool::instance() {
  static ThreadPool* const pool = new ThreadPool;
  return *pool;
}

void ThreadPool::set_threads(int threads) {
  threads = std::clamp(threads, 1, kMaxThreads);
  while (busy_.exchange(true, std::memory_order_acquire)) std::this_thread::yield();
  // Workers take no signals: those are for the threads that run Python.
  sigset_t all, before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  for (; started_ < threads - 1; ++started_) {
    const int self = started_ + 1;
    std::thread([this, self] { worker(self); }).detach();
  }
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  threads_.store(threads, std::memory_order_relaxed);
  busy_.store(false, std::memory_order_release);
}

void ThreadPool::run(int64_t count, Piece piece, const void* context) {
  const int threads = threads_.load(std::memory_order_relaxed);
  if (count <= 1 || threads == 1 || busy_.exchange(true, std::memory_order_acquire)) {
    for (int64_t i = 0; i < count; ++i) piece(context, i);
    return;
  }
  const int64_t grain = (count + kMaxPieces - 1) / kMaxPieces;
  const int64_t pieces = (count + grain - 1) / grain;
  const int participants = static_cast<int>(std::min<int64_t>(threads, pieces));
  const uint32_t job = job_.load(std::memory_order_relaxed) + 1;
  piece_.store(piece, std::memory_order_relaxed);
  context_.store(context, std::memory_order_relaxed);
  count_.store(count, std::memory_order_relaxed);
  grain_.store(grain, std::memory_order_relaxed);
  participants_.store(participants, std::memory_order_relaxed);
  done_.store(0, std::memory_order_relaxed);
  for (int t = 0; t < participants; ++t) {
    const auto first = static_cast<uint32_t>(pieces * t / participants);
    const auto end = static_cast<uint32_t>(pieces * (t + 1) / participants);
    shares_[t].word.store(pack(job, first, end), std::memory_order_release);
  }
  job_.store(job, std::memory_order_seq_cst);
  if (sleeping_workers_.load(std::memory_order_seq_cst) != 0) futex_wake_all(job_);

  work(job, 0);
  wait_until_done(static_cast<uint32_t>(pieces));
  busy_.store(false, std::memory_order_release);
}

bool ThreadPool::take(Share& share, uint32_t job, int64_t* index) {
  uint64_t word = share.word.load(std::memory_order_acquire);
  for (;;) {
    const uint32_t next = word >> 16 & 0xffff, end = word & 0xffff;
    if (word >> 32 != job || next == end) return false;
    if (share.word.compare_exchange_weak(word, pack(job, next + 1, end),
                                         std::memory_order_acq_rel)) {
      *index = next;
      return true;
    }
  }
}

void ThreadPool::work(uint32_t job, int self) {
  // These may already be a later job's, but then no piece can be taken: all words name that job.
  const Piece piece = piece_.load(std::memory_order_relaxed);
  const void* const context = context_.load(std::memory_order_relaxed);
  const int64_t count = count_.load(std::memory_order_relaxed);
  const int64_t grain = grain_.load(std::memory_order_relaxed);
  const int participants = participants_.load(std::memory_order_relaxed);
  uint32_t finished = 0;
  for (int offset = 0; self < participants && offset < participants; ++offset) {
    Share& share = shares_[(self + offset) % participants];
    for (int64_t index; take(share, job, &index); ++finished) {
      const int64_t end = std::min(count, (index + 1) * grain);
      for (int64_t i = index * grain; i < end; ++i) piece(context, i);
    }
  }
  if (finished == 0) return;
  done_.fetch_add(finished, std::memory_order_seq_cst);
  if (caller_sleeps_.load(std::memory_order_seq_cst)) futex_wake_all(done_);
}

void ThreadPool::wait_until_done(uint32_t pieces) {
  for (;;) {
    const uint32_t seen = done_.load(std::memory_order_acquire);
    if (seen == pieces) return;
    if (spin_while(done_, seen)) continue;
    caller_sleeps_.store(true, std::memory_order_seq_cst);
    if (done_.load(std::memory_order_seq_cst) == seen) futex_wait(done_, seen);
    caller_sleeps_.store(false, std::memory_order_relaxed);
  }
}

void ThreadPool::worker(int self) {
  char name[16];
  std::snprintf(name, sizeof name, "pagelet-cpu-%d", self);
  pthread_setname_np(pthread_self(), name);
  for (uint32_t seen = 0;;) {
    uint32_t job = job_.load(std::memory_order_acquire);
    if (job == seen) {
      if (!spin_while(job_, seen)) {
        sleeping_workers_.fetch_add(1, std::memory_order_seq_cst);
        futex_wait(job_, seen);
        sleeping_workers_.fetch_sub(1, std::memory_order_relaxed);
      }
      continue;
    }
    seen = job;
    work(job, self);
  }
}

}  // namespace pagelet
