#include "trainer/outer/gather.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "common/base/check.h"
#include "trainer/outer/exchange_message.h"

namespace sortie::trainer::outer {

Result<std::vector<std::vector<std::byte>>> gather(SiteLinks& links,
                                                   const training::OuterExchange& order,
                                                   std::size_t self, std::span<const std::byte> own,
                                                   ExchangeMemory& memory) {
  const std::size_t members = order.members.size();
  SORTIE_CHECK(self < members, "{} of {}", self, members);
  std::vector<std::vector<std::byte>> all(members);
  if (order.members[self].weight > 0) all[self].assign(own.begin(), own.end());
  if (members == 1) return all;
  SORTIE_TRY(links.open(order, self));
  ExchangeHeader header{.epoch = order.epoch,
                        .round = order.round,
                        .fragment = order.fragment,
                        .phase = ExchangePhase::all,
                        .chunk = self,
                        .values = own.size(),
                        .elements = own.size()};
  if (order.members[self].weight > 0) {
    const auto message = memory.bytes(sizeof(header) + own.size());
    std::memcpy(message.data(), &header, sizeof(header));
    std::ranges::copy(own, message.begin() + sizeof(header));
    for (std::size_t step = 1; step < members; ++step)
      SORTIE_TRY(links.send((self + step) % members, kExchangeTag, message));
  }
  std::vector<std::byte> received(sizeof(header) + own.size());
  for (std::size_t member = 0; member < members; ++member) {
    if (member == self || order.members[member].weight == 0) continue;
    header.chunk = member;
    SORTIE_TRY(links.receive(member, kExchangeTag, received));
    const std::string wrong = difference(received, header);
    if (!wrong.empty())
      return fail(ErrorCode::protocol,
                  fmt::format("exchange of round {}: site {} sent something else: {}; the exchange "
                              "is repeated",
                              order.round, order.members[member].site, wrong));
    all[member].assign(received.begin() + sizeof(header), received.end());
  }
  SORTIE_TRY(links.flush());
  return all;
}

}  // namespace sortie::trainer::outer
