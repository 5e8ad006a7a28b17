// Services that a job needs on its host: PMIx, MPI, its port.
#include <fmt/core.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>

#include "common/base/fd.h"
#include "common/base/split.h"
#include "runner/check/child.h"
#include "runner/check/parts.h"
#include "runner/mpi/pmix_binary.h"

namespace sortie::runner::check {
namespace {

using Json = nlohmann::json;

constexpr std::chrono::milliseconds kProbeLimit{8000};

/// Creates an anonymous file that contains sortie-pmix.
Fd pmix_in_memory() {
  Fd file(::memfd_create("sortie-pmix", 0));
  std::string_view bytes = pmix_binary();
  while (file && !bytes.empty()) {
    const ssize_t count = ::write(file.get(), bytes.data(), bytes.size());
    if (count <= 0) return Fd();
    bytes.remove_prefix(static_cast<std::size_t>(count));
  }
  return file;
}

}  // namespace

Json mpi_part(const std::string& libmpi, const ProcessDefaults& defaults) {
  Json part = {{"part", "mpi"}};
  const Fd program = pmix_in_memory();
  if (!program) {
    part["error"] = std::strerror(errno);
    return part;
  }
  const std::string path = fmt::format("/proc/self/fd/{}", program.get());
  const auto output =
      run_child(path, {"sortie-pmix", "--probe", libmpi.empty() ? "libmpi.so.40" : libmpi}, nullptr,
                kProbeLimit, defaults);
  if (!output) {
    part["error"] = output.error().message;
    return part;
  }
  // Lines "pmix VERSION", "pmix-error WHY", "mpi VERSION", "mpi-error WHY"; other lines are
  // ignored.
  std::string_view text = output->text;
  while (!text.empty()) {
    const std::string_view line = take_line(text);
    for (const char* key : {"pmix", "pmix-error", "mpi", "mpi-error"})
      if (const std::string prefix = fmt::format("{} ", key); line.starts_with(prefix))
        part[key] = std::string(line.substr(prefix.size()));
  }
  if (!part.contains("pmix") && !part.contains("pmix-error"))
    part["error"] = output->status.to_string();
  return part;
}

Json port_part(unsigned port) {
  Json part = {{"part", "port"}, {"port", port}};
  const Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  // As servers do: lingering connections of an earlier server are no obstacle, a listener is.
  if (!socket || ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on) != 0 ||
      ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
      ::listen(socket.get(), 1) != 0)
    part["error"] = std::strerror(errno);
  return part;
}

}  // namespace sortie::runner::check
