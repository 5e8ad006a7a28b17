#include "launcher/nodes/acceptance.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "launcher/check/check_host.h"
#include "launcher/check/requests.h"

namespace sortie::launcher {
namespace asio = boost::asio;
using std::chrono::milliseconds;
namespace {

using Clock = std::chrono::steady_clock;

/// Returns the failed checks, such as "disk: 3 MiB free (free some)"; empty if there are none.
std::vector<std::string> failures_of(const check::HostResult& host,
                                     const check::Expectations& expect) {
  std::vector<std::string> out;
  const auto findings = check::evaluate({host}, expect);  // must outlive the loop
  for (const check::Finding& finding : findings.front())
    if (finding.verdict == check::Verdict::fail)
      out.push_back(fmt::format("{}: {}{}", finding.check, finding.reason,
                                finding.fix.empty() ? "" : " (" + finding.fix + ")"));
  return out;
}

}  // namespace

asio::awaitable<Result<>> accept_spare(asio::any_io_executor executor, Transport& transport,
                                       AcceptanceJob job, config::HostSlots spare,
                                       milliseconds limit, std::shared_ptr<GiveUp> give_up) {
  const auto until = Clock::now() + limit;
  PlannedJob planned;
  planned.loaded.job = job.job;
  planned.plan = job.plan;
  const check::Expectations expect = check::expectations(planned, /*only_hosts=*/false);
  const auto host = std::make_shared<check::CheckHost>(executor, spare.name, spare.slots, give_up);
  co_await host->connect(transport, job.binary, limit);
  if (host->usable()) {
    const auto left = std::chrono::duration_cast<milliseconds>(until - Clock::now());
    std::string request = check::look_request(planned, expect, HostPlan{}, /*first=*/false);
    co_await host->ask("look", std::move(request), std::max(left, milliseconds(1)));
  }
  host->close();
  if (give_up && give_up->given_up())
    co_return fail(ErrorCode::interrupted, fmt::format("{}: the check was given up", spare.name));
  const std::vector<std::string> failures = failures_of(host->result, expect);
  if (failures.empty()) co_return Result<>{};
  co_return fail(ErrorCode::unsupported, fmt::format("{}: not fit to take a place in the job: {}",
                                                     spare.name, fmt::join(failures, "; ")));
}

}  // namespace sortie::launcher
