#include "trainer/checkpoint/byte_stream.h"

#include <algorithm>

namespace sortie::trainer {

ByteStream::ByteStream(std::vector<TensorData> pieces, std::size_t readers, CpuAllowance* allowance)
    : pieces_(std::move(pieces)), allowance_(allowance), taken_(readers) {}

bool ByteStream::has_work() const {
  return std::ranges::any_of(pieces_, [](const TensorData& piece) { return bool(piece.make); });
}

std::uint64_t ByteStream::slowest() const {
  return *std::ranges::min_element(taken_);
}

bool ByteStream::wait_for_room() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return stopped_ || made_ - slowest() < kBuffers; });
  return !stopped_;
}

bool ByteStream::wait_for_buffer(std::size_t reader) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return stopped_ || made_ > taken_[reader]; });
  return !stopped_;
}

void ByteStream::make() {
  CpuAllowance::Spender cpu(allowance_);
  for (const TensorData& piece : pieces_) {
    if (!piece.make) continue;
    for (std::uint64_t begin = 0; begin < piece.size; begin += kBufferBytes) {
      if (!wait_for_room()) return;
      std::vector<std::byte>& buffer = buffers_[made_ % kBuffers];
      buffer.resize(std::min(kBufferBytes, piece.size - begin));
      piece.make(begin, buffer);
      {
        const std::lock_guard lock(mutex_);
        ++made_;
        changed_.notify_all();
      }
      cpu.rest();
    }
  }
}

void ByteStream::read(std::size_t reader,
                      const std::function<bool(std::span<const std::byte>)>& f) {
  CpuAllowance::Spender cpu(allowance_);
  const auto give = [&](std::span<const std::byte> bytes) {
    for (; !bytes.empty(); bytes = bytes.subspan(std::min(bytes.size(), kReadBytes))) {
      if (!f(bytes.first(std::min(bytes.size(), kReadBytes)))) return false;
      cpu.rest();
    }
    return true;
  };
  for (const TensorData& piece : pieces_) {
    for (const auto& part : piece.parts)
      if (!give(part)) return;
    if (!piece.make) continue;
    for (std::uint64_t begin = 0; begin < piece.size; begin += kBufferBytes) {
      if (!wait_for_buffer(reader) || !give(buffers_[taken_[reader] % kBuffers])) return;
      const std::lock_guard lock(mutex_);
      ++taken_[reader];
      changed_.notify_all();
    }
  }
}

void ByteStream::stop() {
  const std::lock_guard lock(mutex_);
  stopped_ = true;
  changed_.notify_all();
}

}  // namespace sortie::trainer
