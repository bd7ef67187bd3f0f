/* Speaks lines of text with flite's voices and says where each phone ends.
 *
 * Standard input: a line an utterance, VOICE<tab>TEXT. Standard output, little-endian, for each:
 * int32 samples, int32 phones; phones times 4 bytes of name (zero-padded) and float32 end in
 * seconds; then int16 samples at 16 kHz.
 *
 * Build, with Debian's flite1-dev:
 *
 *     gcc -O2 -o flite_speech training/flite_speech.c \
 *         -lflite_cmu_us_slt -lflite_cmu_us_rms -lflite_cmu_us_awb -lflite_cmu_us_kal16 \
 *         -lflite_usenglish -lflite_cmulex -lflite -lm
 *
 * For a machine without flite's libraries, of the same kind of processor, append
 * `-static -Wl,--unresolved-symbols=ignore-all`: flite's sound output is then left without ALSA,
 * which nothing here calls. Both speak the same samples.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <flite/flite.h>

cst_voice *register_cmu_us_slt(const char *);
cst_voice *register_cmu_us_rms(const char *);
cst_voice *register_cmu_us_awb(const char *);
cst_voice *register_cmu_us_kal16(const char *);

static const struct {
    const char *name;
    cst_voice *(*make)(const char *);
} VOICES[] = {
    {"slt", register_cmu_us_slt},
    {"rms", register_cmu_us_rms},
    {"awb", register_cmu_us_awb},
    {"kal16", register_cmu_us_kal16},
};
enum { COUNT = sizeof VOICES / sizeof VOICES[0] };

static void write_or_die(const void *data, size_t size) {
    if (size && fwrite(data, size, 1, stdout) != 1) exit(3);
}

static void speak(cst_voice *voice, const char *text) {
    cst_utterance *utterance = flite_synth_text(text, voice);
    if (!utterance) exit(4);
    const cst_wave *wave = utt_wave(utterance);
    int32_t phones = 0;
    for (const cst_item *s = relation_head(utt_relation(utterance, "Segment")); s; s = item_next(s))
        phones++;
    int32_t samples = wave->num_samples;
    if (wave->sample_rate != 16000 || wave->num_channels != 1) exit(5);
    write_or_die(&samples, sizeof samples);
    write_or_die(&phones, sizeof phones);
    for (const cst_item *s = relation_head(utt_relation(utterance, "Segment")); s;
         s = item_next(s)) {
        char name[4];  /* strncpy fills it up with zeros */
        float end = item_feat_float(s, "end");
        strncpy(name, item_feat_string(s, "name"), sizeof name);
        write_or_die(name, sizeof name);
        write_or_die(&end, sizeof end);
    }
    write_or_die(wave->samples, sizeof(int16_t) * (size_t)samples);
    delete_utterance(utterance);
}

int main(void) {
    static char line[1 << 16];
    cst_voice *voices[COUNT] = {0};
    flite_init();
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\n")] = 0;
        char *text = strchr(line, '\t');
        if (!text) exit(2);
        *text++ = 0;
        int index = 0;
        while (index < COUNT && strcmp(VOICES[index].name, line)) index++;
        if (index == COUNT) exit(2);
        if (!voices[index]) voices[index] = VOICES[index].make(NULL);
        speak(voices[index], text);
    }
    return fflush(stdout) ? 3 : 0;
}
