// Attempt: images. Every host must have the same image before any rank starts.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>

#include "common/base/exit_code.h"
#include "common/container/engine_command.h"
#include "launcher/console/console.h"
#include "launcher/copy/progress.h"
#include "launcher/host/host_texts.h"
#include "launcher/plan/plan_container.h"
#include "launcher/supervise/attempt.h"

namespace sortie::launcher {
namespace asio = boost::asio;

namespace {

/// "sha256:" and 64 hex digits. Checked because the id becomes an argument of the engine on every
/// host.
bool is_image_id(std::string_view text) {
  constexpr std::string_view kHash = "sha256:";
  return text.starts_with(kHash) && text.size() == kHash.size() + 64 &&
         text.find_first_not_of("0123456789abcdef", kHash.size()) == text.npos;
}

std::string short_id(const std::string& id) {
  return id.substr(0, 19);  // "sha256:" and twelve digits, as engines show it
}

}  // namespace

wire::Message Attempt::image_order_message() const {
  wire::ImageOrder order = image_order(job_.runner.container, *parts_.credentials);
  order.heartbeat_interval_ms = static_cast<std::uint32_t>(job_.runner.heartbeat_interval.count());
  order.heartbeat_timeout_ms = static_cast<std::uint32_t>(job_.runner.heartbeat_timeout.count());
  return order;
}

asio::awaitable<void> Attempt::image_host(std::size_t index) {
  Host& host = hosts_[index];
  const auto session = host.session;
  Result<> greeted;
  if (!stager_) greeted = co_await session->greet(parts_.binary.sha256());
  if (!greeted) {
    no_image(host, std::move(greeted).error());
    co_return;
  }
  session->expect_progress(work_patience(job_.runner));
  session->send(image_order_message());
  for (;;) {
    auto message = co_await session->next();
    if (!message) {
      no_image(host, std::move(message).error());
      co_return;
    }
    const bool more = take_image_message(host, *message);
    if (!more) co_return;
  }
}

/// Returns true if more messages are expected.
bool Attempt::take_image_message(Host& host, const wire::Message& message) {
  if (const auto* progress = std::get_if<wire::ImageProgress>(&message)) {
    host.image_progress = progress->text;
    return true;
  }
  if (const auto* error = std::get_if<wire::RunnerError>(&message)) {
    no_image(host, {runner_error_code(*error), error->message});
    return false;
  }
  const auto* ready = std::get_if<wire::ImageReady>(&message);
  if (!ready) {
    no_image(host, {ErrorCode::protocol, fmt::format("runner sent {} instead of ImageReady",
                                                     wire::message_name(message))});
  } else if (!is_image_id(ready->image_id)) {
    no_image(host, {ErrorCode::protocol, "runner sent an image id outside the grammar"});
  } else {
    host.image = *ready;
    host.image_progress.clear();
  }
  return false;
}

void Attempt::no_image(Host& host, Error error) {
  host.state = HostState::lost;
  const std::string context = fmt::format("image {}", plan_.container->image);
  if (!error.message.starts_with(context)) error = with_context(std::move(error), context);
  host.error = std::move(error);
}

/// Returns whether all hosts have the same image.
bool Attempt::agree_on_image() {
  std::map<std::string, std::vector<std::string>> hosts_by_id, hosts_by_engine;
  std::size_t pulled = 0;
  std::uint64_t bytes = 0;
  for (const Host& host : hosts_) {
    if (!host.image) return false;
    hosts_by_id[host.image->image_id].push_back(host.plan->name);
    hosts_by_engine[printable(host.image->engine_version)].push_back(host.plan->name);
    pulled += host.image->pulled;
    bytes = std::max(bytes, host.image->bytes);
  }
  const std::string& name = plan_.container->image;
  if (hosts_by_id.size() > 1) {
    std::string text = fmt::format(
        "image {}: is not the same one on all hosts; no rank was "
        "started",
        name);
    for (const auto& [id, names] : hosts_by_id)
      text += fmt::format("\n{}: {}", config::fold_host_names(names), id);
    text += fmt::format(
        "\nset runner.container.pull = \"always\", name it by its digest (NAME@sha256:...), or "
        "copy yours: sortie image push {} --hosts ...",
        name);
    Cause cause;
    cause.what = Cause::What::unreachable;
    cause.message = std::move(text);
    cause.exit_code = exit_code_for(ErrorCode::runner);
    blame(std::move(cause));
    return false;
  }
  image_id_ = hosts_by_id.begin()->first;
  nlohmann::ordered_json engines = nlohmann::ordered_json::object();
  for (const auto& [version, names] : hosts_by_engine)
    engines[version] = config::fold_host_names(names);
  nlohmann::ordered_json event;
  event["image"] = name;
  event["image_id"] = image_id_;
  event["repo_digest"] = hosts_.front().image->repo_digest;
  event["bytes"] = bytes;
  event["hosts"] = hosts_.size();
  event["pulled"] = pulled;
  event["engines"] = engines;
  parts_.folder.event(JournalEvent::image, event);
  parts_.console.message(fmt::format(
      "image {} ({}{}) on {} host{}: {}", name, short_id(image_id_),
      bytes == 0 ? "" : ", " + byte_count(bytes), hosts_.size(), hosts_.size() == 1 ? "" : "s",
      pulled == 0 ? "was there already" : fmt::format("pulled on {}", pulled)));
  return true;
}

/// Engines accept any size. What ranks write there beyond the memory ends them without a reason.
void Attempt::warn_of_shm_size() const {
  const std::uint64_t bytes = plan_.container ? plan_.container->shm_bytes : 0;
  std::vector<std::string> smaller;
  std::uint64_t least = bytes;
  for (const Host& host : hosts_) {
    if (host.memory_bytes == 0 || host.memory_bytes >= bytes) continue;
    smaller.push_back(host.plan->name);
    least = std::min(least, host.memory_bytes);
  }
  if (smaller.empty()) return;
  parts_.console.message(
      fmt::format("runner.container.shm_size: {} is more than the memory of {} ({}): ranks that "
                  "fill /dev/shm are killed; lower it",
                  byte_count(bytes), config::fold_host_names(smaller), byte_count(least)));
}

/// Progress for the user: how many hosts have the image, and what the others do.
std::string Attempt::image_progress_text() const {
  constexpr std::size_t kMostHosts = 3;
  std::size_t have = 0, working = 0;
  std::string details;
  for (const Host& host : hosts_) {
    have += host.image.has_value();
    if (host.image || host.error || host.image_progress.empty()) continue;
    if (++working <= kMostHosts)
      details += fmt::format("; {}: {}", host.plan->name, host.image_progress);
  }
  if (working > kMostHosts) details += fmt::format("; and {} more", working - kMostHosts);
  return fmt::format("image on {}/{} hosts{}", have, hosts_.size(), details);
}

/// Name of the engine client on this host: "containerd" has two clients.
std::string Attempt::client_of(const Host& host) const {
  if (!host.image) return plan_.container->engine;
  const std::string& version = host.image->engine_version;
  std::string word = version.substr(0, version.find(' '));
  for (const container::Engine client : container::clients_of(plan_.container->engine))
    if (container::engine_name(client) == word) return word;
  return plan_.container->engine;
}

}  // namespace sortie::launcher
