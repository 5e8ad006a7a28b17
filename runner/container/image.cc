#include "runner/container/image.h"

#include <fmt/core.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>

#include "runner/container/ctr_image.h"
#include "runner/container/pull_config.h"

namespace sortie::runner::container {
namespace {

using Json = nlohmann::json;
using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kLookLimit{60000};
constexpr std::chrono::hours kPullLimit{6};
constexpr std::chrono::seconds kProgressPause{1};
constexpr milliseconds kPathLimit{15000};

bool says_missing(const CallOutput& output) {
  std::string text = output.err;
  for (char& letter : text) letter = static_cast<char>(std::tolower(letter));
  return text.find("no such image") != std::string::npos ||
         text.find("image not known") != std::string::npos ||
         (text.find("image") != std::string::npos && text.find("not found") != std::string::npos);
}

void add_once(std::vector<std::string>& list, const std::string& item) {
  if (std::ranges::find(list, item) == list.end()) list.push_back(item);
}

Result<> check_architecture(const std::string& image, const ImageFacts& facts) {
  if (facts.architecture.empty() || facts.architecture == own_architecture()) return {};
  return fail(ErrorCode::unsupported, fmt::format("image {}: is for {}, this host is {}", image,
                                                  facts.architecture, own_architecture()));
}

/// Runs in a separate process, because a dead file server must not block the runner.
boost::asio::awaitable<Result<>> check_sources(EngineCalls& calls,
                                               std::vector<std::string> sources) {
  if (sources.empty()) co_return Result<>{};
  Call call;
  call.argv = {"/proc/self/exe", "missing-paths"};
  call.argv.insert(call.argv.end(), sources.begin(), sources.end());
  call.limit = kPathLimit;
  const Result<CallOutput> output = co_await calls.run(std::move(call));
  if (!output && output.error().code == ErrorCode::timeout)
    co_return fail(ErrorCode::timeout,
                   fmt::format("container: mounts: no answer about their sources within {} s: is a "
                               "file server gone?",
                               kPathLimit.count() / 1000));
  if (!output) co_return std::unexpected(output.error());
  if (output->out.empty()) co_return Result<>{};
  std::string text = output->out;
  while (text.ends_with('\n')) text.pop_back();
  for (std::size_t at = 0; (at = text.find('\n', at)) != std::string::npos; at += 2)
    text.replace(at, 1, ", ");
  co_return fail(ErrorCode::unsupported,
                 fmt::format("container: mounts: not on this host: {}; make it, or name the path "
                             "that this host has",
                             text));
}

Error about(const std::string& image, Error error) {
  return with_context(std::move(error), "image " + image);
}

boost::asio::awaitable<Result<>> pull(
    EngineCalls& calls, const Client& client, const wire::ImageOrder& order,
    const std::function<void(const wire::ImageProgress&)>& on_progress) {
  auto config = PullConfig::make(client.engine, order.credentials);
  if (!config) co_return std::unexpected(about(order.image, config.error()));
  PullProgress progress;
  Clock::time_point last{};
  Call call;
  call.argv = sortie::container::pull_command(client.engine, client.program, order.image);
  call.variables = config->variables();
  call.folder = config->folder();
  call.limit = kPullLimit;
  call.on_line = [&](std::string_view line) {
    progress.take(line);
    if (Clock::now() - last < kProgressPause) return;
    last = Clock::now();
    on_progress(wire::ImageProgress{progress.text(order.image)});
  };
  on_progress(wire::ImageProgress{"pulling " + order.image});
  const Result<CallOutput> output = co_await calls.run(std::move(call));
  if (!output) co_return std::unexpected(about(order.image, output.error()));
  if (!output->status.success()) {
    Error error = engine_error(client, "pull", *output);
    if (error.code == ErrorCode::runner)  // others say what to do
      error.message += fmt::format(
          "; correct the name, let this host reach the registry, log in with "
          "runner.container.credentials_file, or send the image: sortie image push {} --hosts ...",
          order.image);
    co_return std::unexpected(about(order.image, std::move(error)));
  }
  co_return Result<>{};
}

}  // namespace

std::string own_architecture() {
  utsname names{};
  ::uname(&names);
  std::string machine = names.machine;
  if (machine == "x86_64") return "amd64";
  if (machine == "aarch64") return "arm64";
  return machine;
}

std::optional<ImageFacts> read_image_json(std::string_view text) {
  Json json = Json::parse(text, nullptr, false);
  if (json.is_array() && json.size() == 1) json = Json(json[0]);
  if (!json.is_object() || !json.contains("Id") || !json["Id"].is_string()) return std::nullopt;
  ImageFacts facts;
  facts.id = json["Id"].get<std::string>();
  if (!facts.id.starts_with("sha256:")) facts.id = "sha256:" + facts.id;
  const auto list = [](const Json& object, const char* name) {
    std::vector<std::string> items;
    if (object.is_object() && object.contains(name) && object[name].is_array())
      for (const Json& item : object[name])
        if (item.is_string()) items.push_back(item.get<std::string>());
    return items;
  };
  if (const auto digests = list(json, "RepoDigests"); !digests.empty())
    facts.repo_digest = digests.front();
  if (json.contains("Architecture") && json["Architecture"].is_string())
    facts.architecture = json["Architecture"].get<std::string>();
  if (json.contains("Size") && json["Size"].is_number_unsigned())
    facts.bytes = json["Size"].get<std::uint64_t>();
  if (json.contains("Config")) facts.entrypoint = list(json["Config"], "Entrypoint");
  return facts;
}

boost::asio::awaitable<Result<std::optional<ImageFacts>>> look_at_image(EngineCalls& calls,
                                                                        Client client,
                                                                        std::string image) {
  if (client.engine == Engine::ctr) co_return co_await look_at_ctr_image(calls, client, image);
  Call call;
  call.argv = sortie::container::inspect_image_command(client.engine, client.program, image);
  call.limit = kLookLimit;
  const Result<CallOutput> output = co_await calls.run(std::move(call));
  if (!output) co_return std::unexpected(about(image, output.error()));
  if (!output->status.success()) {
    if (says_missing(*output)) co_return std::optional<ImageFacts>{};
    co_return std::unexpected(about(image, engine_error(client, "image inspect", *output)));
  }
  std::optional<ImageFacts> facts = read_image_json(output->out);
  if (!facts)
    co_return fail(ErrorCode::runner, fmt::format("image {}: the answer of {} is not understood",
                                                  image, client.program));
  co_return facts;
}

boost::asio::awaitable<Result<ReadyImage>> have_image(
    EngineCalls& calls, wire::ImageOrder order,
    std::function<void(const wire::ImageProgress&)> on_progress, bool& pulled) {
  const Result<> mountable = co_await check_sources(calls, std::move(order.mount_sources));
  if (!mountable) co_return std::unexpected(mountable.error());
  const Result<Client> client = find_client(order.engine);
  if (!client) co_return std::unexpected(client.error());
  if (const Result<> may = may_start(*client); !may) co_return std::unexpected(may.error());
  Result<EngineFacts> engine = co_await ask_engine(calls, *client);
  if (!engine) co_return std::unexpected(engine.error());
  auto before = co_await look_at_image(calls, engine->client, order.image);
  if (!before) co_return std::unexpected(before.error());
  constexpr std::uint8_t kAlways = 1, kNever = 2;
  std::optional<ImageFacts> facts = *before;
  if (!facts && order.pull == kNever)
    co_return fail(
        ErrorCode::not_found,
        fmt::format("image {}: is not here, and pull = \"never\"; build or load it here, "
                    "or send it: sortie image push {} --hosts ...",
                    order.image, order.image));
  if (!facts || order.pull == kAlways) {
    const Result<> done = co_await pull(calls, engine->client, order, on_progress);
    if (!done) co_return std::unexpected(done.error());
    auto after = co_await look_at_image(calls, engine->client, order.image);
    if (!after) co_return std::unexpected(after.error());
    if (!*after)
      co_return fail(ErrorCode::runner,
                     fmt::format("image {}: is not there after its pull", order.image));
    pulled = !facts || facts->id != (*after)->id;
    facts = *after;
  }
  if (const Result<> fits = check_architecture(order.image, *facts); !fits)
    co_return std::unexpected(fits.error());
  if (client->engine == Engine::ctr) {
    const std::string user =
        order.user.empty() ? fmt::format("{}:{}", ::geteuid(), ::getegid()) : order.user;
    if (const Result<> fits = check_ctr_user(order.image, facts->user, user); !fits)
      co_return std::unexpected(fits.error());
  }
  ReadyImage ready;
  ready.engine = *engine;
  ready.image = *facts;
  co_return ready;
}

void PullProgress::take(std::string_view line) {
  last_ = line;
  const std::size_t colon = line.find(": ");
  if (colon == std::string_view::npos || colon < 8 || colon > 64) return;
  const std::string layer(line.substr(0, colon));
  if (layer.find_first_not_of("0123456789abcdef") != std::string::npos) return;
  const std::string_view state = line.substr(colon + 2);
  add_once(layers_, layer);
  const bool ready = state == "Pull complete" || state == "Already exists";
  if (ready) add_once(ready_, layer);
  if (ready || state == "Download complete") add_once(loaded_, layer);
}

std::string PullProgress::text(const std::string& image) const {
  if (layers_.empty()) return fmt::format("pulling {}: {}", image, last_.substr(0, 200));
  return fmt::format("pulling {}: {} of {} layers downloaded, {} unpacked", image, loaded_.size(),
                     layers_.size(), ready_.size());
}

}  // namespace sortie::runner::container
