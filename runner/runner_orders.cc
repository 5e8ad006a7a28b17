// Orders of the launcher: what the runner does for each message, and when each is allowed.
#include <fmt/core.h>

#include "common/asio/spawn.h"
#include "common/base/heap.h"
#include "common/base/log.h"
#include "runner/cleanup/sweep.h"
#include "runner/files/file_receiver.h"
#include "runner/files/file_sender.h"
#include "runner/job/job_check.h"
#include "runner/runner.h"

namespace sortie::runner {
namespace {

using std::chrono::milliseconds;

bool is_of_transfer(const wire::Message& message) {
  return std::holds_alternative<wire::FilesManifest>(message) ||
         std::holds_alternative<wire::FilesWanted>(message) ||
         std::holds_alternative<wire::FilePiece>(message) ||
         std::holds_alternative<wire::FilesCredit>(message) ||
         std::holds_alternative<wire::FilesServe>(message) ||
         std::holds_alternative<wire::FilesFetch>(message);
}

bool is_about_images(const wire::Message& message) {
  return std::holds_alternative<wire::ImageOrder>(message) ||
         std::holds_alternative<wire::ImageQuery>(message) ||
         std::holds_alternative<wire::ImageLoad>(message);
}

bool are_heartbeats(std::uint32_t interval_ms, std::uint32_t timeout_ms) {
  return interval_ms > 0 && timeout_ms > interval_ms;
}

}  // namespace

Result<bool> Runner::handle(const wire::Message& message) {
  if (const auto* hello = std::get_if<wire::Hello>(&message)) return handle_hello(*hello);
  if (!greeted_) return fail(ErrorCode::protocol, "the first message must be Hello");
  if (memory_ && !std::holds_alternative<wire::Heartbeat>(message) &&
      !std::holds_alternative<wire::Goodbye>(message))
    return fail(ErrorCode::protocol, "an order after HoldMemory");
  if (const auto* spec = std::get_if<wire::JobSpec>(&message)) return handle_job(*spec);
  if (const auto* order = std::get_if<wire::FilesOpen>(&message)) return handle_files(*order);
  if (is_about_images(message)) return handle_image(message);
  if (const auto* order = std::get_if<wire::Sweep>(&message)) return handle_sweep(*order);
  if (const auto* order = std::get_if<wire::HoldMemory>(&message)) return handle_hold(*order);
  if (const auto* request = std::get_if<wire::CheckRequest>(&message))
    return handle_check(*request);
  if (const auto* order = std::get_if<wire::TunnelOrder>(&message)) return handle_tunnel(*order);
  if (const auto* beat = std::get_if<wire::Heartbeat>(&message)) {
    if (job_) job_->acknowledge_events(beat->events);
    return true;
  }
  if (files_ && is_of_transfer(message)) {
    SORTIE_TRY(files_->take(message));
    return true;
  }
  if (std::holds_alternative<wire::Goodbye>(message)) {
    if (!job_ || !job_->started() || job_->finished()) return false;
    return fail(ErrorCode::protocol, "Goodbye while ranks run");
  }
  if (!job_) return fail(ErrorCode::protocol, "an order for a job before JobSpec");
  if (std::holds_alternative<wire::Start>(message))
    return handle_start(std::get<wire::Start>(message));
  if (const auto* stop = std::get_if<wire::Stop>(&message)) {
    log::info("stop: {}", stop->reason);
    job_->stop(milliseconds(stop->grace_ms), stop->peers_lost != 0);
    return true;
  }
  if (const auto* order = std::get_if<wire::DumpStacks>(&message)) {
    spawn(io_, job_->dump_stacks(*order));
    return true;
  }
  if (const auto* credit = std::get_if<wire::OutputCredit>(&message)) {
    SORTIE_TRY(job_->acknowledge_output(credit->bytes));
    return true;
  }
  if (const auto* input = std::get_if<wire::Input>(&message)) {
    SORTIE_TRY(job_->take_input(*input));
    return true;
  }
  if (const auto* answer = std::get_if<wire::RankAnswer>(&message)) {
    SORTIE_TRY(job_->take_answer(*answer));
    return true;
  }
  if (wire::is_of_stream(message)) {
    SORTIE_TRY(job_->take_forward(message));
    return true;
  }
  if (std::holds_alternative<wire::PmixFenceDone>(message) ||
      std::holds_alternative<wire::PmixModexRequest>(message) ||
      std::holds_alternative<wire::PmixModexReply>(message) ||
      std::holds_alternative<wire::PmixNamesDone>(message)) {
    SORTIE_TRY(job_->to_pmix(message));
    return true;
  }
  return fail(ErrorCode::protocol, "a message of this type is not for a runner");
}

Result<bool> Runner::handle_hello(const wire::Hello& hello) {
  if (greeted_) return fail(ErrorCode::protocol, "Hello twice");
  greeted_ = true;
  const std::string& mine = build_.empty() ? hello.build : build_;
  link_.send(wire::Hello{wire::kProtocolVersion, mine});
  if (hello.protocol_version != wire::kProtocolVersion)
    return fail(
        ErrorCode::protocol,
        fmt::format("launcher speaks protocol {}, this runner {}; both must be of one build",
                    hello.protocol_version, wire::kProtocolVersion));
  if (!hello.build.empty() && hello.build != mine)
    return fail(ErrorCode::runner,
                fmt::format("this runner is build {}, the launcher expects {}", mine, hello.build));
  return true;
}

Result<bool> Runner::handle_job(const wire::JobSpec& spec) {
  if (job_ || sweeping_ || check_)
    return fail(ErrorCode::protocol, "JobSpec twice, or after another order");
  SORTIE_TRY(check_job(spec));
  if (files_) return_freed_memory();
  epoch_ = spec.epoch;
  job_ = std::make_unique<Job>(io_, link_, spec, defaults_, std::move(keeper_));
  if (images_)
    if (auto image = images_->take(spec.container.image)) job_->use_image(std::move(*image));
  preparing_ = true;
  spawn(io_, prepare());
  set_heartbeat(spec.heartbeat_interval_ms, spec.heartbeat_timeout_ms);
  return true;
}

Result<bool> Runner::handle_files(const wire::FilesOpen& order) {
  if (files_ || job_ || sweeping_ || check_)
    return fail(ErrorCode::protocol, "unexpected start of a transfer");
  if (!are_heartbeats(order.heartbeat_interval_ms, order.heartbeat_timeout_ms))
    return fail(ErrorCode::protocol, "heartbeat times that can not be");
  const auto on_failure = [this](Error error) { spawn(io_, leave_after(std::move(error))); };
  if (order.purpose == wire::FilesPurpose::get)
    files_ = std::make_unique<FileSender>(io_, link_, on_failure);
  else
    files_ = std::make_unique<FileReceiver>(io_, link_, defaults_.umask, on_failure);
  SORTIE_TRY(files_->open(order));
  set_heartbeat(order.heartbeat_interval_ms, order.heartbeat_timeout_ms);
  return true;
}

/// Handles messages about images, which precede a job or replace one (`sortie image push`).
Result<bool> Runner::handle_image(const wire::Message& message) {
  if (job_ || sweeping_ || check_)
    return fail(ErrorCode::protocol, "an order for an image after another order");
  const auto on_failure = [this](Error error) { spawn(io_, leave_after(std::move(error))); };
  if (!images_) images_ = std::make_unique<container::ImageRole>(io_, link_, defaults_, on_failure);
  if (!loads_) loads_ = std::make_unique<container::LoadRole>(io_, link_, defaults_, on_failure);
  if (const auto* order = std::get_if<wire::ImageOrder>(&message)) {
    if (!are_heartbeats(order->heartbeat_interval_ms, order->heartbeat_timeout_ms))
      return fail(ErrorCode::protocol, "heartbeat times that can not be");
    if (images_->busy()) return fail(ErrorCode::protocol, "ImageOrder before ImageReady");
    set_heartbeat(order->heartbeat_interval_ms, order->heartbeat_timeout_ms);
    images_->start(*order);
  } else if (const auto* query = std::get_if<wire::ImageQuery>(&message)) {
    if (!are_heartbeats(query->heartbeat_interval_ms, query->heartbeat_timeout_ms))
      return fail(ErrorCode::protocol, "heartbeat times that can not be");
    set_heartbeat(query->heartbeat_interval_ms, query->heartbeat_timeout_ms);
    SORTIE_TRY(loads_->query(*query));
  } else if (const auto* load = std::get_if<wire::ImageLoad>(&message)) {
    SORTIE_TRY(loads_->load(*load));
  }
  return true;
}

/// Replaces a job: afterwards nothing is accepted but the end.
Result<bool> Runner::handle_sweep(const wire::Sweep& order) {
  if (job_ || sweeping_ || check_)
    return fail(ErrorCode::protocol, "Sweep where there is a job already");
  SORTIE_TRY(check_sweep(order));
  handshake_timer_.cancel();
  sweeping_ = true;
  spawn(io_, sweep(order));
  return true;
}

/// Replaces a job: afterwards handle() accepts only heartbeats and the end.
Result<bool> Runner::handle_hold(const wire::HoldMemory& order) {
  if (job_ || files_ || images_ || sweeping_ || check_)
    return fail(ErrorCode::protocol, "HoldMemory after another order");
  if (!is_run_id(order.run_id))
    return fail(ErrorCode::protocol, "HoldMemory: run_id: not of the form [a-z0-9-]{1,64}");
  if (!are_heartbeats(order.heartbeat_interval_ms, order.heartbeat_timeout_ms))
    return fail(ErrorCode::protocol, "heartbeat times that can not be");
  SORTIE_ASSIGN_OR_RETURN(memory_, MemoryHolder::take(order.run_id, order.host, order.epoch));
  memory_hold_ = milliseconds(order.hold_ms);
  link_.send(wire::MemoryHeld{memory_->path()});
  set_heartbeat(order.heartbeat_interval_ms, order.heartbeat_timeout_ms);
  return true;
}

boost::asio::awaitable<void> Runner::sweep(wire::Sweep order) {
  const wire::Swept swept = co_await sweep_run(io_, std::move(order), defaults_);
  link_.send(swept);
  leaving_ = true;
  co_await link_.flush(kFlushTimeout);
  link_.close();
}

/// The handshake timer keeps running: a check may take no longer than a handshake.
Result<bool> Runner::handle_check(const wire::CheckRequest& request) {
  if (job_ || sweeping_) return fail(ErrorCode::protocol, "CheckRequest after another order");
  if (!check_) check_ = std::make_shared<check::CheckRole>(io_, link_, defaults_);
  SORTIE_TRY(check_->take(request.json));
  return true;
}

/// Allowed between JobReady and Start, or within a check.
Result<bool> Runner::handle_tunnel(const wire::TunnelOrder& order) {
  const bool in_job = job_ && job_->prepared() && !job_->started();
  if (job_ && job_->stopped()) return true;  // it crossed a Stop on the way
  if (!in_job && !(check_ && !job_))
    return fail(ErrorCode::protocol, "TunnelOrder without a job that is ready, or a check");
  if (!tunnel_) {
    tunnel::Tunnel::Events events;
    events.on_child = [this](pid_t pid) {
      if (job_) job_->keep_child(pid);
    };
    events.on_failure = [this](Error error) { spawn(io_, leave_after(std::move(error))); };
    events.on_lost = [this](const Error& error) {
      if (ending_) return;
      if (job_)
        job_->send_error(error.code, error.message);
      else
        send_error(error);
    };
    tunnel_ = std::make_shared<tunnel::Tunnel>(io_, link_, defaults_, std::move(events));
  }
  SORTIE_TRY(tunnel_->take(order.json));
  return true;
}

Result<bool> Runner::handle_start(const wire::Start& start) {
  if (job_->started()) return fail(ErrorCode::protocol, "Start twice");
  if (job_->stopped()) return true;  // it crossed a Stop on the way
  if (!job_->prepared()) return fail(ErrorCode::protocol, "Start before JobReady");
  SORTIE_TRY(check_environment(start.env, "Start: env"));
  if (tunnel_) tunnel_->settle();
  spawn(io_, job_->start(start.env));
  return true;
}

}  // namespace sortie::runner
