#include <vector>

namespace {
// Something to relocate and something on the heap.
std::vector<int> values = {1, 2, 39};
}  // namespace

extern "C" int LowerdTestNeeded() { return values.back(); }
