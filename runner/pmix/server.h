// The PMIx server of one host: passes requests of libpmix to the runner as frames, and the answers
// back.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>

#include "common/base/result.h"
#include "common/wire/frame.h"
#include "common/wire/message.h"
#include "runner/pmix/direct_modex.h"
#include "runner/pmix/frame_pipe.h"
#include "runner/pmix/job_map.h"
#include "runner/pmix/libpmix.h"
#include "runner/pmix/upcalls.h"

namespace sortie::runner {

/// Limit of a blob's size, so that it fits into a frame with the other fields.
inline constexpr std::size_t kMaxBlob = wire::kMaxPayloadBytes - (1u << 20);

class PmixServer {
 public:
  /// Loads libpmix, starts its server and registers the job and its local ranks. `pipe` and `queue`
  /// must outlive the server.
  static Result<PmixServer> start(const wire::PmixSetup& setup, FramePipe& pipe,
                                  UpcallQueue& queue);

  /// Version, and environment of the ranks, for the runner.
  const wire::PmixReady& ready() const { return ready_; }
  /// Handles a message of the runner after PmixSetup.
  Result<> handle(wire::Message message);
  /// Handles all upcalls of libpmix since the last call.
  Result<> handle_upcalls();
  /// When to call handle_due(); nullopt if nothing is scheduled.
  std::optional<DirectModex::Time> next_due() const { return direct_modex_.next(); }
  Result<> handle_due();
  /// Finalizes libpmix's server. Waits at most a second.
  void finalize();

 private:
  PmixServer(Libpmix pmix, JobMap job, std::string nspace, FramePipe& pipe, UpcallQueue& queue)
      : pmix_(std::move(pmix)),
        job_(std::move(job)),
        nspace_(std::move(nspace)),
        pipe_(&pipe),
        queue_(&queue) {}

  Result<> register_job(const wire::PmixSetup& setup);
  Result<> collect_environment(const std::vector<std::uint32_t>& local);
  pmix_proc_t proc(pmix_rank_t rank) const;

  Result<> on(FenceEntered& fence);
  Result<> on(ModexWanted& wanted);
  Result<> on(ModexFound& found);
  Result<> on(KeyLooked& looked);
  Result<> on(ClientChanged& changed);
  Result<> on(AbortCalled& abort);
  Result<> on(NamesAsked& asked);
  Result<> on(SpawnRefused& refused);
  Result<> on(wire::PmixNamesDone& done);
  Result<> on(wire::PmixFenceDone& done);
  Result<> on(wire::PmixModexRequest& request);
  Result<> on(wire::PmixModexReply& reply);
  Result<> on(const wire::PmixExited& exited);

  Result<> take(DirectModex::Steps steps);
  void look(const DirectModex::Look& look);
  void fetch(const DirectModex::Fetch& fetch);

  /// The callback of libpmix that waits for an answer.
  struct Waiting {
    pmix_modex_cbfunc_t done = nullptr;
    void* done_data = nullptr;
  };

  Libpmix pmix_;
  JobMap job_;
  std::string nspace_;
  FramePipe* pipe_;
  UpcallQueue* queue_;
  wire::PmixReady ready_;
  FenceNames fence_names_;
  std::map<std::string, Waiting> fences_;
  std::map<std::uint64_t, Waiting> modexes_;
  DirectModex direct_modex_;
  std::set<std::uint32_t> initialised_;  // local ranks between PMIx_Init and PMIx_Finalize
  std::map<std::uint64_t, NamesAsked> names_;
  std::uint64_t next_modex_id_ = 1, next_names_id_ = 1;
};

}  // namespace sortie::runner
