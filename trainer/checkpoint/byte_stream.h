// The bytes of a file that is being written: some are in memory, others are generated when they are
// needed.
#pragma once

#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

#include "trainer/storage/cpu_allowance.h"

namespace sortie::trainer {

/// The bytes of one tensor. What `parts` refers to and `make` reads must outlive the writing.
struct TensorData {
  /// Fills `out` with the bytes from `begin` on. Called with increasing `begin`, on another thread.
  using Make = std::function<void(std::uint64_t begin, std::span<std::byte> out)>;

  TensorData() = default;
  TensorData(std::span<const std::byte> bytes) : parts{bytes}, size(bytes.size()) {}
  TensorData(const std::vector<std::byte>& bytes) : TensorData(std::span(bytes)) {}
  explicit TensorData(std::vector<std::span<const std::byte>> several) : parts(std::move(several)) {
    for (const auto& part : parts) size += part.size();
  }
  TensorData(std::uint64_t bytes, Make maker) : make(std::move(maker)), size(bytes) {}

  std::vector<std::span<const std::byte>> parts{};
  Make make{};  // generates the bytes, instead of parts
  std::uint64_t size = 0;
};

/// A sequence of bytes for several readers, each on its own thread. Bytes that must be generated
/// are made on one more thread, a few buffers ahead of the slowest reader. All of these threads
/// keep within `allowance`; null: no limit.
class ByteStream {
 public:
  ByteStream(std::vector<TensorData> pieces, std::size_t readers,
             CpuAllowance* allowance = nullptr);

  /// Makes all bytes that must be generated. Run it on its own thread.
  void make();
  bool has_work() const;  // for make()
  /// Calls f(bytes) for all bytes in order, some MiB at a time, until f returns false or the stream
  /// is stopped.
  void read(std::size_t reader, const std::function<bool(std::span<const std::byte>)>& f);
  /// Ends make() and every read().
  void stop();

 private:
  static constexpr std::size_t kBuffers = 4;
  static constexpr std::uint64_t kBufferBytes = std::uint64_t{8} << 20;
  static constexpr std::size_t kReadBytes = std::size_t{4} << 20;  // some milliseconds to hash

  bool wait_for_room();
  bool wait_for_buffer(std::size_t reader);
  std::uint64_t slowest() const;

  std::vector<TensorData> pieces_;
  CpuAllowance* const allowance_;
  std::array<std::vector<std::byte>, kBuffers> buffers_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t made_ = 0;            // buffers made
  std::vector<std::uint64_t> taken_;  // buffers taken, by reader
  bool stopped_ = false;
};

}  // namespace sortie::trainer
