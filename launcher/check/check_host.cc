#include "launcher/check/check_host.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <boost/asio/use_awaitable.hpp>
#include <utility>

#include "common/asio/within.h"
#include "launcher/console/console.h"

namespace sortie::launcher::check {
namespace asio = boost::asio;
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kClockTries = 3;

double milliseconds_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

double unix_us() {
  return std::chrono::duration<double, std::micro>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace

CheckHost::CheckHost(asio::any_io_executor executor, std::string host, std::vector<int> slots,
                     std::shared_ptr<GiveUp> give_up)
    : executor_(executor), give_up_(std::move(give_up)) {
  result.host = std::move(host);
  result.slots = std::move(slots);
}

/// Runs `work` for at most `limit`. The work may continue after that; a host that does not answer
/// delays no other.
asio::awaitable<void> CheckHost::bounded(Work work, Milliseconds limit) {
  const auto self = shared_from_this();
  auto ended = co_await within(limit, std::move(work), give_up_);
  if (!ended && give_up_ && give_up_->given_up()) {
    ended = fail(ErrorCode::interrupted, "given up");
  } else if (!ended) {
    std::string what =
        fmt::format("no answer within {} s", static_cast<double>(limit.count()) / 1000);
    if (!result.report.at.empty()) what += fmt::format(" (it was at: {})", result.report.at);
    ended = fail(ErrorCode::timeout, std::move(what));
  }
  if (*ended || result.error) co_return;
  result.error = ended->error();
  result.error->message = printable(result.error->message);
  close();
}

asio::awaitable<void> CheckHost::connect(Transport& transport, const RunnerBinary& binary,
                                         Milliseconds limit) {
  return bounded(connect_now(transport, binary), limit);
}

asio::awaitable<void> CheckHost::ask(std::string kind, std::string request, Milliseconds limit) {
  return bounded(exchange(std::move(kind), std::move(request)), limit);
}

CheckHost::Work CheckHost::connect_now(Transport& transport, const RunnerBinary& binary) {
  const auto self = shared_from_this();
  auto connection = co_await transport.connect(result.host);
  if (!connection) co_return std::unexpected(std::move(connection).error());
  if (closed_) co_return fail(ErrorCode::interrupted, "given up");
  connection_ = std::move(*connection);
  const auto note_way = [&] {
    result.address = connection_->peer_address();
    result.through = connection_->through();
    result.stages.clear();
    for (const StageTime& stage : connection_->stages())
      result.stages.push_back(
          {std::string(stage.stage), static_cast<double>(stage.took.count()) / 1000});
  };
  note_way();
  const auto begin = Clock::now();
  const auto limit = std::chrono::milliseconds(std::chrono::seconds(60));
  std::function<void(bool)> on_push = [self](bool) { self->result.pushed = true; };
  auto channel = co_await start_runner(*connection_, binary, limit, std::move(on_push));
  if (!channel) co_return std::unexpected(std::move(channel).error());
  if (closed_) co_return fail(ErrorCode::interrupted, "given up");
  note_way();  // a master that refused the session may have been replaced
  client_ = std::make_unique<RunnerClient>(std::move(*channel));
  auto greeted = co_await client_->greet(binary.sha256());
  if (!greeted) co_return std::unexpected(std::move(greeted).error());
  result.stages.push_back({"runner", milliseconds_since(begin)});
  result.reached = true;
  connection_->settled();
  co_return co_await compare_clocks();
}

/// Uses the exchange with the shortest round trip, which bounds the error best.
CheckHost::Work CheckHost::compare_clocks() {
  double best = 0;
  for (int i = 0; i < kClockTries; ++i) {
    const double sent = unix_us();
    const auto begin = Clock::now();
    auto asked = co_await exchange("clock", R"({"kind":"clock"})");
    if (!asked) co_return std::unexpected(std::move(asked).error());
    const double way = milliseconds_since(begin);
    if (!result.report.clock_us)
      co_return fail(ErrorCode::protocol, "the runner did not report its clock");
    if (i > 0 && way >= best) continue;
    best = way;
    result.clock_error_ms = way / 2;
    result.clock_offset_ms = (static_cast<double>(*result.report.clock_us) - sent) / 1000 - way / 2;
  }
  co_return Result<>{};
}

CheckHost::Work CheckHost::exchange(std::string kind, std::string request) {
  const auto self = shared_from_this();
  result.report.done.clear();
  wire::CheckRequest question;
  question.json = std::move(request);
  const std::string bytes = wire::encode(std::move(question));
  auto written = co_await client_->write(bytes);
  if (!written) co_return std::unexpected(std::move(written).error());
  while (result.report.done != kind) {
    auto message = co_await client_->answer();
    if (closed_) co_return fail(ErrorCode::interrupted, "given up");
    if (!message) co_return std::unexpected(std::move(message).error());
    if (const auto* report = std::get_if<wire::CheckReport>(&*message)) {
      auto added = add_part(result.report, report->json);
      if (!added) co_return std::unexpected(std::move(added).error());
    }
  }
  co_return Result<>{};
}

asio::awaitable<Result<std::string>> CheckHost::order_tunnel(std::string order,
                                                             Milliseconds limit) {
  const auto self = shared_from_this();
  const auto report = std::make_shared<std::string>();
  auto ended = co_await within(limit, exchange_tunnel(std::move(order), report));
  if (!ended) co_return fail(ErrorCode::timeout, "no answer to an order for the tunnel");
  if (!*ended) {
    Error error = std::move(*ended).error();
    error.message = printable(error.message);
    co_return std::unexpected(std::move(error));
  }
  co_return std::move(*report);
}

CheckHost::Work CheckHost::exchange_tunnel(std::string order, std::shared_ptr<std::string> report) {
  const auto self = shared_from_this();
  wire::TunnelOrder message;
  message.json = std::move(order);
  const std::string bytes = wire::encode(std::move(message));
  auto written = co_await client_->write(bytes);
  if (!written) co_return std::unexpected(std::move(written).error());
  for (;;) {
    auto answer = co_await client_->answer();
    if (closed_) co_return fail(ErrorCode::interrupted, "given up");
    if (!answer) co_return std::unexpected(std::move(answer).error());
    const auto* said = std::get_if<wire::TunnelReport>(&*answer);
    if (!said) continue;
    *report = said->json;
    co_return Result<>{};
  }
}

void CheckHost::close() {
  if (closed_) return;
  closed_ = true;
  // EOF on stdin tells the runner to exit; a check leaves nothing to send.
  if (client_) client_->close();
  if (connection_) connection_->close();
}

}  // namespace sortie::launcher::check
