#pragma once

#include <set>
#include <string>
#include <vector>

#include "lowerd/v1/lowering.pb.h"
#include "src/base/digest.h"
#include "src/base/error.h"
#include "src/lowering/module_tree.h"
#include "src/lowering/operators.h"

namespace lowerd::lowering {

struct PlannedTarget {
  // In the tree that was planned on.
  const ModuleTree::Node* node = nullptr;
  std::string backend;
  // Sorted by name, each with its spec.
  google::protobuf::RepeatedPtrField<v1::Method> methods;
  Digest compile_spec;
  OperatorCounts operators;

  std::vector<std::string> MethodNames() const;
};

// Why a lowering would be refused.
struct Problem {
  Reason reason;
  // May be empty.
  std::string path;
  std::string message;
};

// What a request means for a model. Found without changing anything.
struct LoweringScheme {
  // Each module object once, in path order.
  std::vector<PlannedTarget> targets;
  // Everything that would be refused, the most basic first.
  std::vector<Problem> problems;
  // Operators that stay outside of the targets, as far as the root's methods reach.
  OperatorCounts remaining;

  std::set<ObjectRef> TargetObjects() const;
};

// `request` is canonical; the tree must outlive the scheme.
LoweringScheme MakeScheme(const ModuleTree& tree, const v1::LowerModelRequest& request);

// The first problem as a status that says how many more there are; OK if there are none.
absl::Status FirstProblem(const std::vector<Problem>& problems);

}  // namespace lowerd::lowering
