#pragma once

#include "lowerd/v1/lowering.pb.h"
#include "src/lowering/model_archive.h"
#include "src/lowering/model_loader.h"

namespace lowerd::lowering {

// What the archive alone tells, without loading: versions, extra files, what is missing.
v1::ModelDescription DescribeArchive(const ModelArchive& archive);

// Adds the module tree, methods, parameters and operators of the loaded model.
void DescribeModules(const torch::jit::Module& module, v1::ModelDescription& description);

}  // namespace lowerd::lowering
