"""The addresses of the node, its pods and Services, none of which is known outside this machine.

Invariant: no packet from a pod or to one crosses the machine's border. The ranges are black holes
before anything starts, and what would be forwarded between a pod and the outside is refused.
`down` gives the machine back as it was, kernel settings included.
"""

import json
from pathlib import Path

from roll_cluster.processes import run
from roll_cluster.settings import NODE, NODE_IP, POD_RANGE, SERVICE_RANGE

HOSTS = Path("/etc/hosts")
# What is changed here, by kubelet or by kube-proxy.
KERNEL = Path("/proc/sys")
CHANGED = (
    "net/ipv4/ip_forward",
    "vm/overcommit_memory",
    "kernel/panic",
    "kernel/panic_on_oops",
    "kernel/keys/root_maxkeys",
    "kernel/keys/root_maxbytes",
)
TABLE = "roll-cluster"
RULES = f"""
table ip {TABLE} {{
  chain forward {{
    type filter hook forward priority filter - 10; policy accept;
    ip saddr {POD_RANGE} ip daddr != {POD_RANGE} reject
    ip daddr {POD_RANGE} ip saddr != {POD_RANGE} drop
  }}
}}
"""


def up(remember: Path) -> None:
    if not remember.exists():
        before = {name: (KERNEL / name).read_text().strip() for name in CHANGED}
        remember.write_text(json.dumps(before))
    run("ip", "address", "replace", f"{NODE_IP}/32", "dev", "lo")
    for network in (POD_RANGE, SERVICE_RANGE):
        run("ip", "route", "replace", "blackhole", network)
    run("nft", "-f", "-", input=f"table ip {TABLE} {{}}\ndelete table ip {TABLE}\n{RULES}")
    (KERNEL / "net/ipv4/ip_forward").write_text("1")  # pods reach each other through the node
    if _hosts_line() not in HOSTS.read_text().splitlines():
        HOSTS.write_text(HOSTS.read_text().rstrip("\n") + f"\n{_hosts_line()}\n")


def down(remember: Path) -> None:
    for table in (TABLE, "kube-proxy"):
        for family in ("ip", "ip6"):
            run("nft", "delete", "table", family, table, check=False)
    for network in (POD_RANGE, SERVICE_RANGE):
        run("ip", "route", "delete", "blackhole", network, check=False)
    run("ip", "address", "delete", f"{NODE_IP}/32", "dev", "lo", check=False)
    lines = HOSTS.read_text().splitlines(keepends=True)
    kept = [line for line in lines if line.strip() != _hosts_line()]
    if kept != lines:
        HOSTS.write_text("".join(kept))
    if remember.exists():
        for name, value in json.loads(remember.read_text()).items():
            if (KERNEL / name).read_text().strip() != value:
                (KERNEL / name).write_text(value)
        remember.unlink()


def _hosts_line() -> str:
    return f"{NODE_IP} {NODE}"
