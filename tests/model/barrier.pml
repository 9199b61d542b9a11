/* The barrier between ranks and the exchange through two staging buffers (src/comm/comm.h), for spin.
 *
 * Every rank writes its buffer of the round's parity, arrives at all peers' slots one after another, waits for its
 * own slots one after another, and reads all buffers. Checked in every interleaving: nobody waits for ever, and no
 * buffer is written again before all have read it. */
#define RANKS 3
#define ROUNDS 4

byte slot[9];   /* slot[owner * RANKS + peer], written by peer */
byte staged[6]; /* staged[rank * 2 + parity]: the round that was written */

active [RANKS] proctype rank()
{
    byte me = _pid;
    byte round = 1;
    byte peer;
    do
    :: round > ROUNDS -> break
    :: else ->
        staged[me * 2 + round % 2] = round;
        peer = 0;
        do
        :: peer < RANKS -> slot[peer * RANKS + me] = round; peer++
        :: else -> break
        od;
        peer = 0;
        do
        :: peer < RANKS -> slot[me * RANKS + peer] >= round; peer++
        :: else -> break
        od;
        peer = 0;
        do
        :: peer < RANKS -> assert(staged[peer * 2 + round % 2] == round); peer++
        :: else -> break
        od;
        round++
    od
}
