#include "launcher/copy/image_push.h"

#include <fmt/format.h>

#include <boost/asio/use_awaitable.hpp>
#include <cctype>
#include <cstdio>
#include <map>

#include "common/asio/token.h"
#include "common/base/exit_code.h"
#include "common/base/print_stderr.h"
#include "common/cli/print.h"
#include "common/config/container_forms.h"
#include "common/container/engine_command.h"
#include "launcher/console/console.h"
#include "launcher/copy/copy_targets.h"
#include "launcher/copy/host_crew.h"
#include "launcher/copy/image_archive.h"
#include "launcher/copy/image_report.h"
#include "launcher/copy/image_source.h"
#include "launcher/copy/progress.h"
#include "launcher/host/host_texts.h"

namespace sortie::launcher {
namespace asio = boost::asio;
using Clock = std::chrono::steady_clock;

namespace {

/// Returns the next message other than ImageProgress.
asio::awaitable<Result<wire::Message>> answer_of(std::shared_ptr<HostSession> session) {
  for (;;) {
    auto message = co_await session->next();
    if (!message || !std::holds_alternative<wire::ImageProgress>(*message)) co_return message;
  }
}

/// Hosts that lack the same layers share one archive, which they pass on.
struct Group {
  explicit Group(asio::io_context& io) : changed(io, Clock::time_point::max()) {}
  LocalTree tree;
  ArchiveProgress progress;  // without the bytes of `upload`
  std::shared_ptr<TreeUpload> upload;
  std::optional<Error> error;
  bool made = false;
  std::size_t receiving = 0;
  asio::steady_timer changed;  // never expires; setting its time would wake all waiters
};

class ImagePush {
 public:
  ImagePush(const ImagePushOptions& options, const CopyTargets& targets)
      : options_(options),
        runner_(targets.runner),
        engine_(engine_of(options, targets.runner)),
        crew_(targets.runner, targets.hosts),
        outcomes_(targets.hosts.size()) {}

  int run();

 private:
  static std::string engine_of(const ImagePushOptions& options,
                               const config::RunnerConfig& runner) {
    if (!options.engine.empty()) return options.engine;
    return runner.container.engine.empty() ? "docker" : runner.container.engine;
  }
  asio::awaitable<Result<>> save();
  asio::awaitable<Result<wire::FilesDone>> serve(std::size_t index,
                                                 std::shared_ptr<HostSession> session);
  asio::awaitable<Result<std::shared_ptr<Group>>> group_of(std::size_t layers);
  asio::awaitable<Result<>> make(Group& group, std::size_t layers);
  asio::awaitable<Result<>> load(std::size_t index, std::shared_ptr<HostSession> session,
                                 std::string file);
  wire::Message query() const;
  wire::FilesOpen files_order(const std::string& host) const;
  wire::Message load_order(std::string file) const;
  Result<wire::ImageLacking> lacking_in(const wire::Message& message) const;
  Result<> loaded_in(std::size_t index, const wire::Message& message);
  std::string file_name(std::size_t layers) const;
  void show_progress();

  const ImagePushOptions& options_;
  const config::RunnerConfig& runner_;
  const std::string engine_;
  HostCrew crew_;
  std::vector<PushOutcome> outcomes_;
  ScratchFolder scratch_;
  std::optional<ImageArchive> archive_;
  std::map<std::size_t, std::shared_ptr<Group>> groups_;  // by number of layers that the hosts have
  std::uint64_t saved_ = 0;
  std::size_t loading_ = 0;
  ProgressLine progress_;
};

asio::awaitable<Result<>> ImagePush::save() {
  auto made = scratch_.make();
  if (!made) co_return made;
  const auto client = client_here(options_.from.empty() ? engine_ : options_.from);
  if (!client) co_return std::unexpected(client.error());
  const std::vector<container::Argv> commands = container::save_commands(
      *client, std::string(container::engine_name(*client)), options_.image);
  const std::function<void(std::uint64_t)> on_bytes = [this](std::uint64_t bytes) {
    saved_ = bytes;
  };
  std::optional<Error> first_error;
  for (const container::Argv& command : commands) {
    auto saved =
        co_await ImageArchive::save(crew_.io().get_executor(), command, scratch_.path(), on_bytes);
    if (saved) {
      archive_ = std::move(*saved);
      co_return Result<>();
    }
    if (!first_error) first_error = std::move(saved).error();
    if (first_error->code != ErrorCode::not_found) break;
  }
  co_return std::unexpected(*std::move(first_error));
}

wire::Message ImagePush::query() const {
  wire::ImageQuery query;
  query.engine = engine_;
  query.image = options_.image;
  query.image_id = archive_->image_id();
  query.diff_ids = archive_->diff_ids();
  query.heartbeat_interval_ms = static_cast<std::uint32_t>(runner_.heartbeat_interval.count());
  query.heartbeat_timeout_ms = static_cast<std::uint32_t>(runner_.heartbeat_timeout.count());
  return query;
}

wire::FilesOpen ImagePush::files_order(const std::string& host) const {
  wire::FilesOpen order;
  order.purpose = wire::FilesPurpose::put;
  order.folder = image_folder(host);
  order.private_folder = 1;
  order.heartbeat_interval_ms = static_cast<std::uint32_t>(runner_.heartbeat_interval.count());
  order.heartbeat_timeout_ms = static_cast<std::uint32_t>(runner_.heartbeat_timeout.count());
  return order;
}

wire::Message ImagePush::load_order(std::string file) const {
  wire::ImageLoad order;
  order.engine = engine_;
  order.image = options_.image;
  order.file = std::move(file);
  return order;
}

/// The same image and layers give the same name: an interrupted push resumes.
std::string ImagePush::file_name(std::size_t layers) const {
  return fmt::format("{}-{}.tar", archive_->image_id().substr(7), layers);
}

Result<wire::ImageLacking> ImagePush::lacking_in(const wire::Message& message) const {
  if (const auto* error = std::get_if<wire::RunnerError>(&message))
    return fail(runner_error_code(*error), error->message);
  const auto* lacking = std::get_if<wire::ImageLacking>(&message);
  if (!lacking || lacking->layers > archive_->diff_ids().size())
    return fail(ErrorCode::protocol, "runner: an invalid answer to ImageQuery");
  return *lacking;
}

Result<> ImagePush::loaded_in(std::size_t index, const wire::Message& message) {
  if (const auto* error = std::get_if<wire::RunnerError>(&message))
    return fail(runner_error_code(*error), error->message);
  const auto* ready = std::get_if<wire::ImageReady>(&message);
  if (!ready) return fail(ErrorCode::protocol, "runner: no answer to the order to load an image");
  outcomes_[index].image_id = printable(ready->image_id);
  if (ready->image_id == archive_->image_id()) return {};
  return fail(ErrorCode::data, fmt::format("image {}: is {} there, {} here", options_.image,
                                           printable(ready->image_id), archive_->image_id()));
}

asio::awaitable<Result<>> ImagePush::make(Group& group, std::size_t layers) {
  std::string path = archive_->path();
  if (layers > 0) {
    path = fmt::format("{}/{}", scratch_.path(), file_name(layers));
    std::function<void(std::uint64_t, std::uint64_t)> on_bytes = [&group](std::uint64_t done,
                                                                          std::uint64_t all) {
      group.progress.cut = done;
      group.progress.to_cut = all;
    };
    auto written = co_await archive_->write_without(layers, path, std::move(on_bytes));
    if (!written) co_return written;
  }
  std::vector<files::ScanRoot> roots;
  roots.push_back(files::ScanRoot());
  roots.back().path = path;
  roots.back().name = file_name(layers);
  std::function<void(const ReadProgress&)> on_progress = [&group](const ReadProgress& now) {
    group.progress.reading = now;
  };
  auto read = co_await read_local_tree(std::move(roots), std::move(on_progress));
  if (!read) co_return std::unexpected(std::move(read).error());
  group.tree = std::move(*read);
  std::function<void(std::string)> on_note = [this](const std::string& text) {
    progress_.clear();
    print_stderr("{}\n", text);
  };
  const bool relay = relay_pays(options_.relay, crew_.size(), group.tree.bytes);
  group.upload = std::make_shared<TreeUpload>(crew_.io().get_executor(), group.tree, crew_.size(),
                                              relay, std::move(on_note));
  co_return Result<>();
}

asio::awaitable<Result<std::shared_ptr<Group>>> ImagePush::group_of(std::size_t layers) {
  std::shared_ptr<Group> group = groups_[layers];
  if (!group) {
    group = groups_[layers] = std::make_shared<Group>(crew_.io());
    const auto made = co_await make(*group, layers);
    if (!made) group->error = made.error();
    group->made = true;
    group->changed.cancel();
  }
  while (!group->made) co_await group->changed.async_wait(kToken);
  if (group->error) co_return std::unexpected(*group->error);
  co_return group;
}

asio::awaitable<Result<>> ImagePush::load(std::size_t index, std::shared_ptr<HostSession> session,
                                          std::string file) {
  session->send(load_order(std::move(file)));
  auto message = co_await answer_of(session);
  if (!message) co_return std::unexpected(std::move(message).error());
  co_return loaded_in(index, *message);
}

asio::awaitable<Result<wire::FilesDone>> ImagePush::serve(std::size_t index,
                                                          std::shared_ptr<HostSession> session) {
  session->send(query());
  auto message = co_await answer_of(session);
  if (!message) co_return std::unexpected(std::move(message).error());
  const auto lacking = lacking_in(*message);
  if (!lacking) co_return std::unexpected(lacking.error());
  outcomes_[index].present = lacking->present != 0;
  outcomes_[index].layers_there = lacking->present ? archive_->diff_ids().size() : lacking->layers;
  if (lacking->present) {
    outcomes_[index].image_id = archive_->image_id();
    co_return wire::FilesDone();
  }
  auto group = co_await group_of(lacking->layers);
  if (!group) co_return std::unexpected(std::move(group).error());
  ++(*group)->receiving;
  auto done = co_await (*group)->upload->send_to(index, session, files_order(session->host()));
  --(*group)->receiving;
  (*group)->changed.cancel();
  if (!done) co_return done;
  // Other hosts may still fetch from this one's file, which is removed when loaded.
  while ((*group)->receiving > 0) co_await (*group)->changed.async_wait(kToken);
  ++loading_;
  std::string file = fmt::format("{}/{}", done->folder, file_name(lacking->layers));
  const auto loaded = co_await load(index, session, std::move(file));
  --loading_;
  if (!loaded) co_return std::unexpected(loaded.error());
  co_return done;
}

void ImagePush::show_progress() {
  if (!archive_) return progress_.show(fmt::format("saving {}", options_.image), saved_, 0);
  std::vector<ArchiveProgress> archives;
  for (const auto& [layers, group] : groups_) {
    ArchiveProgress& one = archives.emplace_back(group->progress);
    if (!group->upload) continue;
    one.is_sent = true;
    one.done = group->upload->bytes_done();
    one.wanted = group->upload->bytes_wanted();
  }
  progress_.show(image_progress(archives, crew_.size(), loading_));
}

int ImagePush::run() {
  const auto begun = Clock::now();
  const Result<> ran = crew_.run([this] { return save(); },
                                 [this](std::size_t index, std::shared_ptr<HostSession> session) {
                                   return serve(index, std::move(session));
                                 },
                                 [this] { show_progress(); });
  progress_.clear();
  if (!ran) {
    print_stderr("{}\n", ran.error().message);
    return crew_.interrupted().value_or(exit_code_for(ran.error().code));
  }
  const double seconds = std::chrono::duration<double>(Clock::now() - begun).count();
  const PushReport report{options_.image, archive_->image_id(), seconds, crew_.results(),
                          outcomes_};
  const int printed =
      cli::print_text("sortie", options_.json ? image_json(report) : image_text(report));
  const int exit_code = print_host_errors(crew_.results());
  if (!crew_.interrupted()) return exit_code != kExitOk ? exit_code : printed;
  print_stderr("interrupted; the same command continues from here\n");
  return *crew_.interrupted();
}

}  // namespace

std::string image_folder(const std::string& host) {
  std::string name = host;
  for (char& letter : name)
    if (std::isalnum(static_cast<unsigned char>(letter)) == 0 && letter != '-' && letter != '.')
      letter = '_';
  if (name.starts_with('.')) name.front() = '_';
  return ".cache/sortie/images/" + name;
}

int push_image(const ImagePushOptions& options) {
  const auto say = [](const std::string& message, ErrorCode code) {
    print_stderr("{}\n", message);
    return exit_code_for(code);
  };
  if (std::string error = config::check_image(options.image); !error.empty())
    return say(error, ErrorCode::usage);
  const auto targets = copy_targets(options.job, "image push");
  if (!targets) return say(targets.error().message, targets.error().code);
  return ImagePush(options, *targets).run();
}

}  // namespace sortie::launcher
