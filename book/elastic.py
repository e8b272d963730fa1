import os, signal, sys, time
import torch, torch.distributed as dist

folder = sys.argv[1]
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
path, log = f"{folder}/checkpoint.pt", open(f"{folder}/log.txt", "a")
state = torch.load(path) if os.path.exists(path) else {"step": 0}
while state["step"] < 60:
    x = torch.ones(1)
    dist.all_reduce(x)  # stands for the gradients
    state["step"] += 1
    if rank == 0:
        torch.save(state, path + ".part")
        os.replace(path + ".part", path)
        print(time.monotonic(), state["step"], int(x), file=log, flush=True)
    dist.barrier()
    if state["step"] == 20 and os.environ["GROUP_RANK"] == "1":
        os.kill(os.getppid(), signal.SIGKILL)  # this machine is lost: agent and worker
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.02)
