#include "launcher/run/run_folder.h"

#include <fmt/chrono.h>
#include <sys/stat.h>

#include <algorithm>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <mutex>
#include <nlohmann/json.hpp>
#include <random>
#include <vector>

#include "common/asio/file_thread.h"
#include "common/base/atomic_file.h"
#include "common/base/json_text.h"
#include "common/base/printable.h"
#include "launcher/run/attempt_folder.h"
#include "launcher/run/run_journal.h"

namespace sortie::launcher {
namespace fs = std::filesystem;

namespace {

/// Like mkdir -p, with mode 0700 for new folders regardless of the umask. Returns 0 if the folder
/// exists at the end, else an errno.
int make_private_folders(const fs::path& path) {
  if (::mkdir(path.c_str(), 0700) == 0) return 0;
  std::error_code ignored;
  if (errno == EEXIST) return fs::is_directory(path, ignored) ? 0 : ENOTDIR;
  if (errno != ENOENT || !path.has_relative_path()) return errno;
  if (const int number = make_private_folders(path.parent_path()); number != 0) return number;
  return ::mkdir(path.c_str(), 0700) == 0 || errno == EEXIST ? 0 : errno;
}

/// A run does not need the link: errors are ignored (a file system without symlinks).
void point_latest_at(const fs::path& runs, const std::string& id) {
  std::error_code error;
  const fs::path fresh = runs / (".latest-" + id);
  fs::create_directory_symlink(id, fresh, error);
  if (!error) fs::rename(fresh, runs / "latest", error);
  if (error) fs::remove(fresh, error);
}

}  // namespace

/// Passes results from the folder's thread to the listener on an I/O thread. Batches many writes
/// into one call.
struct RunFolder::Delivery : std::enable_shared_from_this<RunFolder::Delivery> {
  struct Written {
    std::uint64_t bytes = 0, pieces = 0;
  };
  std::mutex mutex;
  std::optional<Listener> listener;
  std::uint64_t number = 0;                  // of the listener
  std::map<std::uint64_t, Written> written;  // by owner
  std::vector<std::function<void(const Listener&)>> calls;
  bool posted = false;

  /// `to`: number of the listener for which the output was queued.
  void note_written(std::uint64_t to, std::uint64_t owner, std::uint64_t bytes) {
    const std::lock_guard lock(mutex);
    if (!listener || number != to) return;
    Written& entry = written[owner];
    entry.bytes += bytes;
    ++entry.pieces;
    post();
  }
  void call(std::function<void(const Listener&)> what) {
    const std::lock_guard lock(mutex);
    if (!listener) return;
    calls.push_back(std::move(what));
    post();
  }
  void post() {
    if (std::exchange(posted, true)) return;
    boost::asio::post(listener->executor, [self = shared_from_this()] { self->deliver(); });
  }
  /// Runs on the I/O thread, like set(), so the listener can not be removed during the call.
  void deliver() {
    std::unique_lock lock(mutex);
    posted = false;
    if (!listener) return;
    const Listener to = *listener;
    const auto news = std::exchange(written, {});
    const auto others = std::exchange(calls, {});
    lock.unlock();
    for (const auto& [owner, count] : news)
      if (to.on_written) to.on_written(owner, count.bytes, count.pieces);
    for (const auto& other : others) other(to);
  }
  void set(Listener what) {
    const std::lock_guard lock(mutex);
    listener.reset();
    ++number;
    if (what.executor) listener = std::move(what);
    written.clear();
    calls.clear();
    posted = false;
  }
};

RunFolder::RunFolder() = default;
RunFolder::RunFolder(RunFolder&&) noexcept = default;
RunFolder::~RunFolder() = default;

void RunFolder::start(bool tensorboard) {
  delivery_ = std::make_shared<Delivery>();
  journal_ = std::make_unique<RunJournal>(path_, tensorboard, attempt_);
  journal_->set_on_trouble([to = delivery_](const Error& error) {
    to->call([error](const Listener& listener) {
      if (listener.on_trouble) listener.on_trouble(error);
    });
  });
  thread_ = std::make_unique<FileThread>([journal = journal_.get()] { journal->flush(); });
}

double unix_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

Result<fs::path> state_folder(const std::string& log_dir) {
  if (!log_dir.empty()) return fs::path(log_dir);
  if (const char* state = std::getenv("XDG_STATE_HOME"); state && *state == '/')
    return fs::path(state) / "sortie";
  if (const char* home = std::getenv("HOME"); home && *home == '/')
    return fs::path(home) / ".local/state/sortie";
  const char* home = std::getenv("HOME");
  return fail(ErrorCode::config,
              fmt::format("HOME {}: there is no place for the run folder; set logger.log_dir",
                          home && *home ? fmt::format("is no absolute path ({})", printable(home))
                                        : "is not set"));
}

Result<RunFolder> RunFolder::create(const fs::path& state, bool tensorboard) {
  const fs::path runs = state / "runs";
  if (const int number = make_private_folders(runs); number != 0)
    return fail(ErrorCode::io, fmt::format("{}; set logger.log_dir to a folder that is writable",
                                           os_error(number, runs.string()).message));
  RunFolder folder;
  std::random_device random;
  for (int attempt = 0; attempt < 16; ++attempt) {
    constexpr std::string_view kLetters = "0123456789abcdefghjkmnpqrstvwxyz";
    std::string suffix;
    for (int i = 0; i < 4; ++i) suffix += kLetters[random() % kLetters.size()];
    folder.id_ = fmt::format("{:%Y%m%d-%H%M%S}-{}", fmt::gmtime(std::time(nullptr)), suffix);
    folder.path_ = runs / folder.id_;
    if (::mkdir(folder.path_.c_str(), 0700) == 0) break;
    if (errno != EEXIST)
      return fail(ErrorCode::io, fmt::format("{}; set logger.log_dir to a folder that is writable",
                                             os_error(errno, folder.path_.string()).message));
    folder.path_.clear();
  }
  if (folder.path_.empty())
    return fail(ErrorCode::io, fmt::format("{}: no free run id", runs.string()));
  if (::mkdir((folder.path_ / "logs").c_str(), 0700) != 0) {
    const Error failed = os_error(errno, (folder.path_ / "logs").string());
    ::rmdir(folder.path_.c_str());
    return std::unexpected(failed);
  }

  folder.start(tensorboard);
  point_latest_at(runs, folder.id_);
  return folder;
}

void RunFolder::discard() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
  const fs::path runs = path_.parent_path();
  if (fs::read_symlink(runs / "latest", ignored) != id_) return;
  std::string newest;
  for (const fs::directory_entry& entry : fs::directory_iterator(runs, ignored))
    if (entry.is_directory(ignored) && !entry.is_symlink(ignored))
      newest = std::max(newest, entry.path().filename().string());
  if (newest.empty())
    fs::remove(runs / "latest", ignored);
  else
    point_latest_at(runs, newest);
}

RunFolder RunFolder::open(const fs::path& path, bool tensorboard, std::uint32_t attempt) {
  RunFolder folder;
  folder.attempt_ = attempt;
  folder.id_ = path.filename().string();
  folder.path_ = path;
  folder.adopted_ = true;
  folder.start(tensorboard);
  return folder;
}

Result<RunFolder> RunFolder::open_site(const fs::path& run, const std::string& site,
                                       const std::string& id, bool tensorboard,
                                       std::uint32_t attempt) {
  RunFolder folder;
  folder.attempt_ = attempt;
  folder.id_ = id;
  folder.path_ = site_folder(run, site);
  std::error_code ignored;
  folder.adopted_ = fs::exists(folder.path_ / "plan.json", ignored);
  for (const fs::path& path : {folder.path_.parent_path(), folder.path_, folder.path_ / "logs"})
    if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST)
      return std::unexpected(os_error(errno, path.string()));
  folder.start(tensorboard);
  return folder;
}

void RunFolder::obey(fs::path newer) {
  thread_->post([journal = journal_.get(), newer] { journal->obey(newer); });
}

bool RunFolder::superseded() const {
  return journal_->superseded();
}

void RunFolder::look_for_newer(std::function<void(bool newer)> done) {
  thread_->post([journal = journal_.get(), to = delivery_, done = std::move(done)] {
    const bool newer = journal->look_for_newer();
    to->call([done, newer](const Listener&) { done(newer); });
  });
}

void RunFolder::when_written(std::function<void()> done) {
  thread_->post(std::move(done));
}

std::uint64_t RunFolder::listen(Listener listener) {
  delivery_->set(std::move(listener));
  return delivery_->number;
}

void RunFolder::stop_listening(std::uint64_t number) {
  if (delivery_->number == number) delivery_->set({});
}

Result<> RunFolder::write(const std::string& name, const std::string& content) {
  return write_file_atomic(path_ / name, content, 0600);
}

void RunFolder::event(JournalEvent event, const nlohmann::ordered_json& fields) {
  nlohmann::ordered_json line = {
      {"schema", "sortie/events/1"}, {"time", unix_time()}, {"event", journal_event_name(event)}};
  line.update(fields);
  std::string text = json_text(line) + "\n";
  const std::size_t bytes = text.size();
  thread_->post([journal = journal_.get(), text = std::move(text)] { journal->event(text); },
                bytes);
}

void RunFolder::begin_attempt(std::uint32_t attempt, std::string plan_json) {
  attempt_ = attempt;
  stream_bytes_.clear();
  adopted_ = false;
  thread_->post([journal = journal_.get(), attempt, plan = std::move(plan_json)] {
    journal->begin_attempt(attempt, plan);
  });
}

void RunFolder::metric(nlohmann::json event) {
  // A rough estimate of the memory that an event holds.
  constexpr std::size_t kBytesPerMember = 100;
  if (thread_->queued_bytes() > kMaxQueuedMetrics) {
    ++dropped_metrics_;
    return;
  }
  if (dropped_metrics_ > 0)
    this->event(JournalEvent::metrics_dropped, {{"lines", std::exchange(dropped_metrics_, 0)}});
  const std::size_t bytes = kBytesPerMember * (1 + event.size());
  thread_->post([journal = journal_.get(), event = std::move(event),
                 now = unix_time()] { journal->metric(event, now); },
                bytes);
}

void RunFolder::profile(std::uint32_t rank, nlohmann::json event) {
  const auto parts = event.find("events");
  if (parts == event.end() || !parts->is_array()) return;
  thread_->post([journal = journal_.get(), rank, trace = std::move(*parts)] {
    journal->profile(rank, trace);
  });
}

void RunFolder::keep(const std::string& name, std::string content) {
  const std::size_t bytes = content.size();
  thread_->post([journal = journal_.get(), name,
                 content = std::move(content)] { journal->keep(name, content); },
                bytes);
}

void RunFolder::track(const config::JobConfig& job) {
  thread_->post([journal = journal_.get(), job] { journal->track(job); });
}

void RunFolder::log(std::uint32_t rank, wire::Stream stream, std::string bytes,
                    std::uint64_t owner) {
  const StreamId id{rank, stream};
  const std::size_t size = bytes.size();
  stream_bytes(rank, stream);
  stream_bytes_[id] += size;
  thread_->post(
      [journal = journal_.get(), to = delivery_, listener = delivery_->number, id,
       bytes = std::move(bytes), owner] {
        journal->log(id, bytes);
        to->note_written(listener, owner, bytes.size());
      },
      size);
}

std::uint64_t RunFolder::stream_bytes(std::uint32_t rank, wire::Stream stream) {
  const StreamId id{rank, stream};
  const auto [entry, is_new] = stream_bytes_.try_emplace(id);
  if (is_new && adopted_) {
    const LogEnd end = read_log_end(attempt_folder(path_, attempt_), id);
    entry->second = end.stream_bytes;
    thread_->post([journal = journal_.get(), id, offset = end.file_bytes] {
      journal->begin_log_at(id, offset);
    });
  }
  return entry->second;
}

void RunFolder::finish(int exit_code) {
  if (dropped_metrics_ > 0) event(JournalEvent::metrics_dropped, {{"lines", dropped_metrics_}});
  thread_->post([journal = journal_.get(), exit_code] { journal->finish(exit_code); });
}

bool RunFolder::drain(std::chrono::milliseconds limit) const {
  return thread_->drain(limit);
}

std::size_t RunFolder::queued_bytes() const {
  return thread_->queued_bytes();
}

std::optional<Error> RunFolder::trouble() const {
  return journal_->trouble();
}

std::uint64_t RunFolder::lost_bytes() const {
  return journal_->lost_bytes();
}

}  // namespace sortie::launcher
