/** Flags that several commands share. Values are parsed here, so that a command gets what it names. */
import { Flags } from '@oclif/core';
import { XceError } from '../base/errors.ts';
import { type Attempt, type JobId, type LeaseNumber, parseAttempt, parseJobId, parseLeaseNumber } from '../base/ids.ts';
import { parseDurationMs } from '../base/duration.ts';
import { escapeText } from '../base/escape.ts';

const parsed = <T>(what: string, text: string, value: T | undefined): T => {
  if (value === undefined) throw new XceError('usage', `'${escapeText(text)}' is not ${what}`);
  return value;
};

export const jobFlag = Flags.custom<JobId>({
  char: 'j',
  description: 'Job id, exactly as the batch system writes it.',
  helpValue: 'ID',
  parse: async (text) => parsed('a job id', text, parseJobId(text)),
});

export const attemptFlag = Flags.custom<Attempt>({
  description: 'Attempt (requeue count) of the job; default: the latest one with a lease.',
  helpValue: 'N',
  parse: async (text) => parsed('an attempt', text, parseAttempt(text)),
});

export const leaseFlag = Flags.custom<LeaseNumber>({
  description: 'Lease number, in place of --job.',
  helpValue: 'N',
  parse: async (text) => parsed('a lease number', text, parseLeaseNumber(text)),
});

export const durationFlag = Flags.custom<number>({
  helpValue: 'TIME',
  parse: async (text) => parsed('a duration such as 90s, 10m or 2h', text, parseDurationMs(text)),
});

export const countFlag = Flags.custom<number>({
  helpValue: 'N',
  parse: async (text) => {
    const value = /^[1-9][0-9]{0,5}$/.test(text) ? Number(text) : undefined;
    return parsed('a number from 1 to 999999', text, value);
  },
});

/** How a command names one lease. */
export const leaseSelection = {
  job: jobFlag({ exclusive: ['lease'] }),
  attempt: attemptFlag({ dependsOn: ['job'] }),
  lease: leaseFlag(),
};
