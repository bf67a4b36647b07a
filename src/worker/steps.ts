/** The steps that run in one sandbox. A step has its name from before its start until after its end. */
import { messageOf, XceError } from '../base/errors.ts';
import { LIMITS } from '../base/limits.ts';
import type { RunningStep, SandboxSpec, StepSpec } from '../sandbox/backend.ts';
import type { SupervisorPorts } from './ports.ts';

export type StepKind = 'task' | 'head' | 'daemon';

export type StepOwner = {
  readonly kind: StepKind;
  /** Undefined for a daemon that belongs to no launch. */
  readonly launch: string | undefined;
};

type Step = StepOwner & { readonly step: string; running: RunningStep | undefined };

export class Steps {
  readonly #ports: Pick<SupervisorPorts, 'backend' | 'busy' | 'report' | 'meter'>;
  readonly #lease: number;
  readonly #steps = new Map<string, Step>();

  constructor(ports: SupervisorPorts, lease: number) {
    this.#ports = ports;
    this.#lease = lease;
  }

  get size(): number {
    return this.#steps.size;
  }

  list(): { step: string; kind: StepKind; unit: string }[] {
    return [...this.#steps.values()].map(({ step, kind, running }) => ({
      step,
      kind,
      unit: running?.unit ?? '',
    }));
  }

  /** Throws 'sandbox-exists' for a name that is in use, 'worker-busy' beyond the bound, or what the backend throws. */
  async start(
    spec: SandboxSpec,
    invocationId: string,
    whose: StepOwner,
    step: StepSpec,
  ): Promise<RunningStep> {
    if (this.#steps.has(step.step)) {
      throw new XceError('sandbox-exists', `lease ${this.#lease} has a step ${step.step} here`);
    }
    if (this.#steps.size >= LIMITS.stepsPerSandboxMax) {
      throw new XceError('worker-busy', `lease ${this.#lease} has ${LIMITS.stepsPerSandboxMax} steps here`);
    }
    const entry: Step = { ...whose, step: step.step, running: undefined };
    this.#steps.set(step.step, entry);
    try {
      this.#ports.busy.write(String(this.#lease), Buffer.from('steps\n'));
      const running = await this.#ports.backend.startStep(spec, invocationId, step);
      entry.running = running;
      this.#ports.meter.stepStarted(whose.kind);
      running.ended.then(({ result }) => {
        this.#ports.meter.stepEnded(result);
        this.#forget(step.step);
      });
      return running;
    } catch (error) {
      this.#forget(step.step);
      throw error;
    }
  }

  /** Ends a step; a failure goes to the log, because the deadline of its sandbox ends it in any case. */
  async stop(running: RunningStep): Promise<void> {
    try {
      await running.stop();
    } catch (error) {
      const message = `${running.unit} could not be stopped: ${messageOf(error)}`;
      this.#ports.report({ level: 'fault', message });
    }
  }

  launchOf(step: string): string | undefined {
    return this.#steps.get(step)?.launch;
  }

  /** Those of one launch that have started. */
  ofLaunch(launch: string): readonly RunningStep[] {
    return [...this.#steps.values()].flatMap((step) =>
      step.launch === launch && step.running !== undefined ? [step.running] : [],
    );
  }

  /** Ends all that have started, and waits for their ends. */
  async stopAll(): Promise<void> {
    await Promise.all(
      [...this.#steps.values()].map(async ({ running }) => {
        if (running === undefined) return;
        await this.stop(running);
        await running.ended;
      }),
    );
  }

  #forget(step: string): void {
    this.#steps.delete(step);
    if (this.#steps.size > 0) return;
    try {
      this.#ports.busy.remove(String(this.#lease));
    } catch (error) {
      // The mark that stays makes the next worker look for steps that are not there.
      this.#ports.report({ level: 'fault', message: messageOf(error) });
    }
  }
}
