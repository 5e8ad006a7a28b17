#include "launcher/sites/forward_router.h"

#include <fmt/core.h>

#include <algorithm>

#include "common/config/text.h"

namespace sortie::launcher {

void ForwardRouter::take(const std::string& host, const wire::Message& message) {
  if (const auto* order = std::get_if<wire::ForwardOpen>(&message)) return open(host, *order);
  if (const auto* end = std::get_if<wire::ForwardClose>(&message))
    return close({host, end->id}, end->why, /*tell_end=*/false);
  if (const auto* credit = std::get_if<wire::ForwardCredit>(&message)) {
    const auto found = ends_.find({host, credit->id});
    if (found == ends_.end()) return;  // the stream has ended meanwhile
    Other& other = found->second;
    if (credit->bytes > wire::kForwardWindow - std::min(other.granted, wire::kForwardWindow))
      return close(found->first, "more credit than the window", /*tell_end=*/true);
    other.granted += credit->bytes;
    send_(other.end.first, wire::ForwardCredit{other.end.second, credit->bytes});
    return;
  }
  const auto* data = std::get_if<wire::ForwardData>(&message);
  const auto found = data != nullptr ? ends_.find({host, data->id}) : ends_.end();
  if (found == ends_.end()) return;
  const End other = found->second.end;
  std::uint64_t& granted = ends_.at(other).granted;
  if (data->bytes.size() > granted)
    return close(found->first, "more data than was granted", /*tell_end=*/true);
  granted -= data->bytes.size();
  bytes_ += data->bytes.size();
  send_(other.first, wire::ForwardData{other.second, data->bytes});
}

void ForwardRouter::open(const std::string& host, const wire::ForwardOpen& order) {
  const End here{host, order.id};
  if (ends_.contains(here)) return close(here, "opened twice", /*tell_end=*/true);
  const auto refuse = [&](const std::string& why) {
    send_(host, wire::ForwardClose{order.id, why});
  };
  if ((order.id & wire::kForwardByLauncher) != 0 || order.port == 0 || order.port > 65535)
    return refuse("no number or port of a stream");
  if (streams_of(host) >= wire::kMaxForwards || streams_of(order.host) >= wire::kMaxForwards)
    return refuse(fmt::format("more than {} streams", wire::kMaxForwards));
  const End there{order.host, ++next_};
  if (!send_(order.host, wire::ForwardOpen{there.second, "", order.port}))
    return refuse(
        fmt::format("host \"{}\" of the run is not connected", config::shorten(order.host)));
  ends_[here].end = there;
  ends_[there].end = here;
}

/// Closes the stream and tells the other end, with `tell_end` also this end.
void ForwardRouter::close(const End& end, const std::string& why, bool tell_end) {
  const auto found = ends_.find(end);
  if (found == ends_.end()) return;
  const End mine = end, other = found->second.end;
  ends_.erase(found);
  ends_.erase(other);
  send_(other.first, wire::ForwardClose{other.second, why});
  if (tell_end) send_(mine.first, wire::ForwardClose{mine.second, why});
}

void ForwardRouter::host_gone(const std::string& host) {
  for (;;) {
    const auto found = ends_.lower_bound({host, 0});
    if (found == ends_.end() || found->first.first != host) return;
    close(End(found->first), fmt::format("host {} is gone", host), /*tell_end=*/false);
  }
}

std::size_t ForwardRouter::streams_of(const std::string& host) const {
  const auto begin = ends_.lower_bound({host, 0});
  return static_cast<std::size_t>(std::distance(begin, ends_.upper_bound({host, UINT64_MAX})));
}

}  // namespace sortie::launcher
