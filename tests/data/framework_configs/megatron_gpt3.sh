#!/bin/bash
# A run as scripts of Megatron-LM state it; shapes of GPT-3.
GPUS_PER_NODE=8
NUM_NODES=${NUM_NODES:-16}
DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes ${NUM_NODES:-16}
    --master_addr $MASTER_ADDR
)
GPT_MODEL_ARGS=(
    --num-layers 96
    --hidden-size 12288
    --num-attention-heads 96
    --seq-length 2048
    --max-position-embeddings 2048
    --vocab-size 51200
    --attention-backend auto # fused
)
TRAINING_ARGS=(
    --micro-batch-size 1
    --global-batch-size 1536
    --lr 6.0e-5
    --bf16
    --use-distributed-optimizer
    --overlap-grad-reduce
    --recompute-granularity selective
)
MODEL_PARALLEL_ARGS=(
	--tensor-model-parallel-size 8
	--pipeline-model-parallel-size 16
	--sequence-parallel
)
torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py ${GPT_MODEL_ARGS[@]} ${TRAINING_ARGS[@]} \
    ${MODEL_PARALLEL_ARGS[@]} --train-iters 100 --a-new-option 3
