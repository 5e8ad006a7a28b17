// What each member of an order has to say, to all members: for updates that every site computes for
// itself (demo.h).
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "common/base/result.h"
#include "common/training/outer.h"
#include "trainer/outer/exchange.h"
#include "trainer/outer/site_links.h"

namespace sortie::trainer::outer {

/// Opens the links for the order (but for one member) and sends `own` to all members; all that have
/// a weight have as many bytes to send. Gives what each has sent, in the order of the members, of
/// one without weight nothing. Sends (M - 1) x bytes, receives as much. Memory as for exchange();
/// all is in memory at once. Errors as of SiteLinks.
Result<std::vector<std::vector<std::byte>>> gather(SiteLinks& links,
                                                   const training::OuterExchange& order,
                                                   std::size_t self, std::span<const std::byte> own,
                                                   ExchangeMemory& memory);

}  // namespace sortie::trainer::outer
