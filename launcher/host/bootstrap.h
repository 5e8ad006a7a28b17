// Starts the runner on a host that may lack it: one command and one exchange on its stdio, over any
// Transport. bootstrap_script.h has the host's side.
#pragma once

#include <boost/asio/awaitable.hpp>
#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "common/base/result.h"
#include "launcher/host/transport.h"

namespace sortie::launcher {

/// The runner's executable file, memory-mapped. Its hashes are cached (runner_hashes.h).
class RunnerBinary {
 public:
  /// ErrorCode::not_found or ErrorCode::io.
  static Result<RunnerBinary> open(const std::filesystem::path& path);
  RunnerBinary(RunnerBinary&& other) noexcept;
  RunnerBinary& operator=(RunnerBinary&& other) noexcept;
  ~RunnerBinary();

  const std::filesystem::path& path() const { return path_; }
  std::string_view bytes() const { return bytes_; }
  /// Lower-case hex.
  const std::string& sha256() const { return sha256_; }
  /// 64-bit XXH3, lower-case hex. A runner compares it with its own content when it starts.
  const std::string& xxh3() const { return xxh3_; }
  /// Machine name as in `uname -m`, such as "x86_64"; "any" for a script.
  const std::string& machine() const { return machine_; }

 private:
  RunnerBinary() = default;
  std::filesystem::path path_;
  std::string_view bytes_;  // the mapping
  std::string sha256_, xxh3_;
  std::string machine_;
};

/// Whether the runner keeps running after its conversation (common/wire/serving.h).
enum class RunnerStays { no, yes };

/// Runs the runner on the host; copies `binary` there first if the host lacks exactly this build.
/// Returns a channel to the runner's stdio (frames). ErrorCode::runner if the runner can not be
/// installed or started; the message has what the host printed. Both references must outlive the
/// call. `on_push` is called with true when the transfer of the binary starts, and with false when
/// it has ended. If the connection already has a runner (Connection::take_runner), returns its
/// channel.
boost::asio::awaitable<Result<std::unique_ptr<Channel>>> start_runner(
    Connection& connection, const RunnerBinary& binary,
    std::chrono::milliseconds timeout = std::chrono::seconds(60),
    std::function<void(bool)> on_push = {}, RunnerStays stays = RunnerStays::no);

}  // namespace sortie::launcher
