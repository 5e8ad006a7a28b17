#include "launcher/sites/outer_log.h"

#include <fcntl.h>
#include <fmt/core.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "common/asio/file_thread.h"
#include "common/base/atomic_file.h"
#include "common/base/json_member.h"
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

namespace {

/// What a line says about itself.
struct LineHead {
  std::uint64_t by = 0;    // its supervisor
  bool takes = false;      // this supervisor begins
  std::uint64_t read = 0;  // and has read so many bytes
};

/// nullopt = the line is damaged.
std::optional<LineHead> head_of(std::string_view line) {
  const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return {};
  LineHead head;
  for (const auto& [key, to] : {std::pair{"by", &head.by}, {"read", &head.read}}) {
    const auto member = json.find(key);
    if (member == json.end()) continue;
    if (!member->is_number_unsigned()) return {};
    *to = member->get<std::uint64_t>();
  }
  head.takes = json_member::text(json, "do") == "takes";
  return head;
}

}  // namespace

/// A "takes" line says how much of the file its supervisor had read. Lines that earlier supervisors
/// wrote after that offset were never acted on and do not count.
Result<std::string> lines_that_count(std::string_view text) {
  struct Line {
    std::uint64_t offset = 0, by = 0;
    std::string_view text;
    bool counts = false;
  };
  std::vector<Line> lines;
  std::uint64_t newest = 0;  // supervisor
  std::size_t damaged = 0;   // number of the damaged line before this one; 0 = none
  std::uint64_t offset = 0;
  for (std::size_t end; (end = text.find('\n')) != text.npos;
       text.remove_prefix(end + 1), offset += end + 1) {
    Line& line = lines.emplace_back(Line{offset, 0, text.substr(0, end + 1), false});
    if (end == 0) continue;
    const std::optional<LineHead> head = head_of(line.text);
    if (!head) {
      if (damaged == 0) damaged = lines.size();
      continue;
    }
    // A line cut off by a crash was never acted on. The next supervisor has ended it with a
    // newline.
    if (damaged != 0 && !head->takes)
      return fail(ErrorCode::data,
                  fmt::format("line {} is damaged; start the run again to resume from its "
                              "checkpoints",
                              damaged));
    damaged = 0;
    line.by = head->by;
    if (head->takes) {
      for (std::size_t i = lines.size(); i-- > 0 && lines[i].offset >= head->read;)
        if (lines[i].by < head->by) lines[i].counts = false;
      newest = std::max(newest, head->by);
    } else {
      line.counts = head->by >= newest;
    }
  }
  std::string out;
  for (const Line& line : lines) out += line.counts ? line.text : "\n";
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
  auto lines = lines_that_count(text);
  if (!lines) return std::unexpected(with_context(lines.error(), state.path.string()));
  SORTIE_TRY(state.write(takes));
  log.thread_ = std::make_unique<FileThread>(std::function<void()>());
  return Opened{std::move(log), std::move(*lines)};
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
