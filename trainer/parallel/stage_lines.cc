#include "trainer/parallel/stage_lines.h"

#include <fmt/core.h>

#include "common/base/check.h"
#include "trainer/parallel/device_communicator.h"
#include "trainer/parallel/stage_pairs.h"

namespace sortie::trainer {

StageLines::StageLines(Communicator& stages) : stages_(stages) {
  const int count = stages.size();
  if (!sends_between_devices(stages)) return;
  direct_ = count > 1;
  for (const auto& [from, to] : stage_pairs(count))
    if (auto line = make_line(stages, from, to)) lines_[{from, to}] = std::move(line);
}

StageLines::End StageLines::end(int from, int to, int peer) {
  if (!direct_) return {stages_, peer};
  const auto found = lines_.find({from, to});
  SORTIE_CHECK(found != lines_.end(), "stages {} and {} are no neighbours", from, to);
  return {*found->second, peer == from ? 0 : 1};
}

Communicator::Handle StageLines::send(const Tensor& values, int stage, const Event& ready) {
  const End line = to(stage);
  return line.group.send_async(values, line.peer, ready);
}

Communicator::Handle StageLines::receive(const Tensor& values, int stage, const Event& ready) {
  const End line = from(stage);
  return line.group.receive_async(values, line.peer, ready);
}

}  // namespace sortie::trainer
