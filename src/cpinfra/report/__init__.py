"""The typed report, schema `cpinfra/1`.

The one package that needs pydantic, whose import costs more than the rest of the command line: import this
one only when there is something to report.
"""

from __future__ import annotations

from ..text import plain as plain
from .advice import Blocking as Blocking
from .advice import Guard as Guard
from .advice import Log as Log
from .advice import Next as Next
from .advice import Question as Question
from .advice import Recipe as Recipe
from .advice import Sandbox as Sandbox
from .base import FindingFacts as FindingFacts
from .base import Section as Section
from .base import Text as Text
from .base import Unavailable as Unavailable
from .convert import blocking_from as blocking_from
from .convert import check_from as check_from
from .convert import finding_from as finding_from
from .convert import hang_from as hang_from
from .convert import software_from as software_from
from .document import SCHEMA as SCHEMA
from .document import Report as Report
from .document import Tool as Tool
from .document import now as now
from .document import schema as schema
from .machine import Cpus as Cpus
from .machine import Disk as Disk
from .machine import GpuFacts as GpuFacts
from .machine import Hardware as Hardware
from .machine import Host as Host
from .machine import Limits as Limits
from .machine import Memory as Memory
from .machine import Shm as Shm
from .machine import StaleSegment as StaleSegment
from .machine import Topology as Topology
from .proof import Check as Check
from .proof import Culprit as Culprit
from .proof import Hang as Hang
from .proof import MeshFacts as MeshFacts
from .proof import Plan as Plan
from .proof import PlanConfig as PlanConfig
from .proof import Run as Run
from .proof import Side as Side
from .selftest import Control as Control
from .selftest import SelfTestRow as SelfTestRow
from .selftest import Told as Told
from .stack import Consistency as Consistency
from .stack import FileIdentity as FileIdentity
from .stack import GpuKernels as GpuKernels
from .stack import Model as Model
from .stack import Nccl as Nccl
from .stack import Software as Software
