#include "runner/pmix/server.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <future>
#include <numeric>
#include <thread>

#include "common/wire/frame.h"
#include "runner/pmix/job_info.h"

namespace sortie::runner {
namespace {

/// Waits for a registration in libpmix, which is complete when its callback has run on libpmix's
/// thread.
class Completion {
 public:
  static void callback(pmix_status_t status, void* self) {
    static_cast<Completion*>(self)->promise_.set_value(status);
  }
  static void event_callback(pmix_status_t status, std::size_t, void* self) {
    callback(status, self);
  }
  /// `status`: the return value of the call.
  pmix_status_t wait(pmix_status_t status) {
    if (status == PMIX_OPERATION_SUCCEEDED) return PMIX_SUCCESS;
    if (status != PMIX_SUCCESS) return status;
    auto future = promise_.get_future();
    if (future.wait_for(std::chrono::seconds(20)) == std::future_status::ready) return future.get();
    // The callback may still run and needs this object, so the caller leaks it; the process ends on
    // this error.
    return PMIX_ERR_TIMEOUT;
  }

 private:
  std::promise<pmix_status_t> promise_;
};

/// Variables for every rank, in addition to libpmix's.
///   JSM_JSRUN_PORT: without a launcher whose name it knows, Open MPI 4 runs every rank as a
///     separate job, rank 0 of 1, before it checks for PMIx. This variable names one ("JSM"), and
///     makes Open MPI leave binding to us. Open MPI 5 neither needs nor reads it.
///   OMPI_MCA_pmix_base_async_modex: if 1, Open MPI reads the data of its neighbours without a
///     fence before. If a rank of the same host is connected but has not published yet, libpmix
///     waits two seconds, then MPI_Init fails; a loaded host needs that long to start a rank.
constexpr const char* kCommonEnvironment[] = {"JSM_JSRUN_PORT=1",
                                              "OMPI_MCA_pmix_base_async_modex=0"};

}  // namespace

Result<PmixServer> PmixServer::start(const wire::PmixSetup& setup, FramePipe& pipe,
                                     UpcallQueue& queue) {
  SORTIE_ASSIGN_OR_RETURN(JobMap job, JobMap::from_setup(setup));
  SORTIE_ASSIGN_OR_RETURN(Libpmix pmix, Libpmix::load());
  PmixServer server(std::move(pmix), std::move(job), setup.nspace, pipe, queue);

  InfoList options;
  options.add(PMIX_SERVER_TMPDIR, setup.tmp_dir);
  options.add(PMIX_SYSTEM_TMPDIR, setup.tmp_dir);
  // Must be this host's entry in the node map, otherwise the ranks assume that they are alone on
  // it.
  options.add(PMIX_HOSTNAME, setup.host);
  pmix_status_t status = server.pmix_.server_init(make_server_module(queue, setup.nspace),
                                                  options.data(), options.size());
  if (status != PMIX_SUCCESS)
    return std::unexpected(server.pmix_.error("PMIx server could not start", status));

  auto* handler = new Completion;
  server.pmix_.register_event_handler(nullptr, 0, nullptr, 0, on_pmix_event,
                                      Completion::event_callback, handler);
  status = handler->wait(PMIX_SUCCESS);
  if (status < 0)
    return std::unexpected(server.pmix_.error("PMIx event handler not taken", status));
  delete handler;
  SORTIE_TRY(server.register_job(setup));
  SORTIE_TRY(server.collect_environment(setup.local_ranks));
  server.ready_.version = server.pmix_.version();
  return server;
}

pmix_proc_t PmixServer::proc(pmix_rank_t rank) const {
  pmix_proc_t proc;
  std::memset(&proc, 0, sizeof proc);
  std::memcpy(proc.nspace, nspace_.data(), std::min<std::size_t>(nspace_.size(), PMIX_MAX_NSLEN));
  proc.rank = rank;
  return proc;
}

Result<> PmixServer::register_job(const wire::PmixSetup& setup) {
  // Leaked on error, like the completions, because libpmix may still read it.
  auto* info = new InfoList(make_job_info(setup, job_));
  const std::vector<std::uint32_t>& local = job_.ranks[job_.my_host];
  const pmix_proc_t job = proc(PMIX_RANK_WILDCARD);
  auto* job_done = new Completion;
  pmix_status_t status =
      job_done->wait(pmix_.register_nspace(job.nspace, static_cast<int>(local.size()), info->data(),
                                           info->size(), Completion::callback, job_done));
  if (status != PMIX_SUCCESS)
    return std::unexpected(pmix_.error("PMIx did not take the job", status));
  delete job_done;
  delete info;

  // Register all ranks before any starts: a rank that fences while another is unknown would hang.
  std::vector<pmix_proc_t> procs;
  for (std::uint32_t rank : local) procs.push_back(proc(rank));
  for (const pmix_proc_t& client : procs) {
    auto* done = new Completion;
    status = done->wait(
        pmix_.register_client(&client, getuid(), getgid(), nullptr, Completion::callback, done));
    if (status != PMIX_SUCCESS)
      return std::unexpected(
          pmix_.error(fmt::format("PMIx did not take rank {}", client.rank), status));
    delete done;
  }
  return {};
}

Result<> PmixServer::collect_environment(const std::vector<std::uint32_t>& local) {
  std::vector<std::vector<std::string>> per_rank;
  for (std::uint32_t rank : local) {
    char** variables = nullptr;
    const pmix_proc_t client = proc(rank);
    const pmix_status_t status = pmix_.setup_fork(&client, &variables);
    if (status != PMIX_SUCCESS)
      return std::unexpected(
          pmix_.error(fmt::format("PMIx gave no environment for rank {}", rank), status));
    auto& list = per_rank.emplace_back();
    for (char** variable = variables; variable && *variable; ++variable) {
      list.emplace_back(*variable);
      std::free(*variable);
    }
    std::free(variables);
  }
  const auto is_common = [&](const std::string& variable) {
    return std::ranges::all_of(
        per_rank, [&](const auto& list) { return std::ranges::count(list, variable) > 0; });
  };
  // With one rank per host all its variables would count as common, but PMIX_RANK is always its
  // own.
  const auto is_own = [&](const std::string& variable) {
    return variable.starts_with("PMIX_RANK=") || !is_common(variable);
  };
  for (const char* variable : kCommonEnvironment) ready_.env.emplace_back(variable);
  for (const std::string& variable : per_rank.front())
    if (!is_own(variable)) ready_.env.push_back(variable);
  for (std::size_t i = 0; i < local.size(); ++i) {
    ready_.env.push_back(fmt::format("#rank {}", local[i]));
    for (const std::string& variable : per_rank[i])
      if (is_own(variable)) ready_.env.push_back(variable);
  }
  return {};
}

Result<> PmixServer::handle_upcalls() {
  for (Upcall& upcall : queue_->take_all())
    SORTIE_TRY(std::visit([this](auto& concrete) { return on(concrete); }, upcall));
  return {};
}

Result<> PmixServer::handle(wire::Message message) {
  if (auto* done = std::get_if<wire::PmixFenceDone>(&message)) return on(*done);
  if (auto* request = std::get_if<wire::PmixModexRequest>(&message)) return on(*request);
  if (auto* reply = std::get_if<wire::PmixModexReply>(&message)) return on(*reply);
  if (auto* names = std::get_if<wire::PmixNamesDone>(&message)) return on(*names);
  if (const auto* exited = std::get_if<wire::PmixExited>(&message)) return on(*exited);
  return fail(ErrorCode::protocol, "message that is not for the PMIx server");
}

Result<> PmixServer::on(FenceEntered& fence) {
  if (std::ranges::count(fence.ranks, PMIX_RANK_WILDCARD) > 0) {
    fence.ranks.resize(job_.world_size());
    std::iota(fence.ranks.begin(), fence.ranks.end(), 0u);
  }
  if (std::ranges::any_of(fence.ranks, [&](pmix_rank_t r) { return r >= job_.world_size(); })) {
    answer_modex(fence.done, fence.done_data, PMIX_ERR_BAD_PARAM, {});
    return {};
  }
  const FenceNames::Name name = fence_names_.next(job_, fence.ranks);
  if (name.node_count <= 1) {
    answer_modex(fence.done, fence.done_data, PMIX_SUCCESS, std::move(fence.data));
    return {};
  }
  if (fence.data.size() > kMaxBlob)
    return fail(ErrorCode::unsupported,
                fmt::format("the ranks of this host publish {} bytes to the others, more than the "
                            "limit of {}",
                            fence.data.size(), kMaxBlob));
  fences_[name.key] = {fence.done, fence.done_data};
  return pipe_->send(wire::PmixFence{name.key, name.node_count, std::move(fence.data)});
}

Result<> PmixServer::on(wire::PmixFenceDone& done) {
  const auto found = fences_.find(done.key);
  if (found == fences_.end())
    return fail(ErrorCode::protocol, fmt::format("no fence '{}' is waiting", done.key));
  const Waiting waiting = found->second;
  fences_.erase(found);
  answer_modex(waiting.done, waiting.done_data, done.status, std::move(done.data));
  return {};
}

Result<> PmixServer::on(AbortCalled& abort) {
  Result<> sent =
      pipe_->send(wire::PmixAbort{abort.rank, abort.status, abort.message.substr(0, 64u << 10)});
  // The rank waits for this callback before it exits with its status.
  if (abort.done) abort.done(PMIX_SUCCESS, abort.done_data);
  return sent;
}

/// PMIx_Finalize returns to the rank after its upcall was queued, so what the rank did before its
/// end is known once the queue is empty.
Result<> PmixServer::on(const wire::PmixExited& exited) {
  SORTIE_TRY(handle_upcalls());
  return pipe_->send(
      wire::PmixExited{exited.rank, static_cast<std::uint8_t>(initialised_.contains(exited.rank))});
}

void PmixServer::finalize() {
  // On a separate thread, which may be left behind: the process ends right after.
  auto finished = std::make_shared<std::promise<void>>();
  auto future = finished->get_future();
  std::thread([finalize = pmix_.server_finalize, finished] {
    finalize();
    finished->set_value();
  }).detach();
  future.wait_for(std::chrono::seconds(1));
}

}  // namespace sortie::runner
