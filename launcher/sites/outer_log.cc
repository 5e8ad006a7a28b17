#include "launcher/sites/outer_log.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <utility>

#include "common/asio/file_thread.h"
#include "common/base/atomic_file.h"
#include "launcher/control/supervisor_lock.h"

namespace sortie::launcher {
namespace fs = std::filesystem;

struct OuterLog::State {
  fs::path path, newer;
  Fd file;
  unsigned epoch = 0;
  boost::asio::any_io_executor executor;

  Result<> write(const std::string& text) {
    if (::access(newer.c_str(), F_OK) == 0)
      return fail(ErrorCode::lost, path.string() + ": another supervisor has the run");
    struct stat before {};
    if (::fstat(file.get(), &before) != 0) return std::unexpected(os_error(errno, path.string()));
    for (std::size_t done = 0; done < text.size();) {
      const ssize_t count = ::write(file.get(), text.data() + done, text.size() - done);
      if (count < 0 && errno == EINTR) continue;
      if (count <= 0) {
        const int why = count == 0 ? ENOSPC : errno;
        // Remove the partial line, because later lines would be read as its rest.
        if (::ftruncate(file.get(), before.st_size) != 0)
          return std::unexpected(os_error(errno, path.string()));
        return std::unexpected(os_error(why, path.string()));
      }
      done += static_cast<std::size_t>(count);
    }
    if (::fdatasync(file.get()) != 0) return std::unexpected(os_error(errno, path.string()));
    return {};
  }
};

OuterLog::OuterLog() = default;
OuterLog::OuterLog(OuterLog&&) noexcept = default;
OuterLog::~OuterLog() = default;

/// A "takes" line says how much of the file its supervisor had read. Lines that earlier supervisors
/// wrote after that offset were never acted on and do not count.
std::string lines_that_count(std::string_view text) {
  std::uint64_t newest = 0;  // supervisor
  std::string out;
  std::vector<std::pair<std::uint64_t, std::string_view>> kept;  // offset, line
  std::vector<std::uint64_t> by;
  std::uint64_t offset = 0;
  for (std::size_t end; (end = text.find('\n')) != text.npos;
       text.remove_prefix(end + 1), offset += end + 1) {
    const std::string_view line = text.substr(0, end + 1);
    const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    // A line cut off by a crash was never acted on. The next supervisor has ended it with a
    // newline.
    if (!json.is_object()) continue;
    const std::uint64_t who = json.value("by", std::uint64_t{0});
    if (json.value("do", "") == "takes") {
      const std::uint64_t read = json.value("read", std::uint64_t{0});
      for (std::size_t i = kept.size(); i-- > 0 && kept[i].first >= read;)
        if (by[i] < who) {
          kept.erase(kept.begin() + static_cast<std::ptrdiff_t>(i));
          by.erase(by.begin() + static_cast<std::ptrdiff_t>(i));
        }
      newest = std::max(newest, who);
      continue;
    }
    if (who < newest) continue;
    kept.emplace_back(offset, line);
    by.push_back(who);
  }
  for (const auto& [at, line] : kept) out += line;
  return out;
}

Result<OuterLog::Opened> OuterLog::open(const fs::path& run, unsigned epoch,
                                        boost::asio::any_io_executor executor) {
  OuterLog log;
  log.state_ = std::make_shared<State>();
  State& state = *log.state_;
  state.path = run / "outer.log";
  state.newer = supervisor_file(run, epoch + 1);
  state.epoch = epoch;
  state.executor = std::move(executor);
  std::string text;
  std::error_code ignored;
  if (fs::exists(state.path, ignored)) {
    SORTIE_ASSIGN_OR_RETURN(text, read_file(state.path, std::size_t{1} << 32));
  }
  state.file.reset(::open(state.path.c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (!state.file) return std::unexpected(os_error(errno, state.path.string()));
  const bool torn = !text.empty() && text.back() != '\n';
  const std::string takes = fmt::format("{}{{\"by\":{},\"do\":\"takes\",\"read\":{}}}\n",
                                        torn ? "\n" : "", epoch, text.size());
  SORTIE_TRY(state.write(takes));
  log.thread_ = std::make_unique<FileThread>(std::function<void()>());
  return Opened{std::move(log), lines_that_count(text)};
}

void OuterLog::append(std::vector<std::string> lines, std::function<void(Result<>)> done) {
  std::string text;
  for (const std::string& line : lines)
    text += fmt::format("{{\"by\":{},{}", state_->epoch, line.substr(1));
  const std::size_t bytes = text.size();
  thread_->post(
      [state = state_, text = std::move(text), done = std::move(done)] {
        Result<> written = state->write(text);
        boost::asio::post(state->executor, [done, written] { done(written); });
      },
      bytes);
}

}  // namespace sortie::launcher
